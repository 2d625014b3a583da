"""The agent's HTTP side: read-only routes on loopback.

/            the live page, and what it asks for (see page.routes)
/metrics     for Prometheus: text, or OpenMetrics (with exemplars) when asked for; gzip level 1
/healthz     is the agent alive, and how long ago did it last read the rings
/api/report  report.json as it stands now

Everything runs in the agent's own event loop, between two polls, so nothing is read while it changes.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ranksight.agent.errors import RanksightError
from ranksight.agent.observer import Observer
from ranksight.agent.page import routes as page

PORTS_TRIED = 100
MIN_GZIP_BYTES = 2048


def app(
    observer: Observer, report: Callable[[], dict[str, Any]], run: Callable[[], dict[str, Any]] = dict
) -> Starlette:
    """The routes over an observer that is polled elsewhere; `run` gives run.json."""

    async def metrics(request: Request) -> Response:
        openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
        body, content_type = observer.exposition(openmetrics=openmetrics)
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if len(body) >= MIN_GZIP_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
            # level 1: the default takes ten times as long for a fifth less
            body, headers["Content-Encoding"] = gzip.compress(body, compresslevel=1), "gzip"
        return Response(body, headers=headers)

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok", "run_id": observer.run_id, "polls": observer.polls})

    async def current_report(_: Request) -> Response:
        return JSONResponse(report())

    return Starlette(
        routes=[
            *page.routes(report, run),
            Route("/metrics", metrics),
            Route("/healthz", healthz),
            Route("/api/report", current_report),
        ]
    )


def bind(host: str, port: int) -> tuple[socket.socket, bool]:
    """A listening socket on `port`, or on the next free one; and whether it had to be another. 0 takes any.

    Raises RanksightError when none of PORTS_TRIED ports is free or the address is not this host's.
    """
    for candidate in range(port, port + (PORTS_TRIED if port else 1)):
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if error.errno not in {98, 13}:  # EADDRINUSE, EACCES: another port may do
                raise RanksightError(f"can't listen on {host}: {error.strerror}") from error
            continue
        return listener, port not in {candidate, 0}
    raise RanksightError(f"ports {port} to {port + PORTS_TRIED - 1} of {host} are all in use")


class Server(uvicorn.Server):
    """uvicorn that leaves signals to the daemon."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install nothing: the daemon decides when to end."""
        yield


def server(application: Starlette) -> Server:
    """A server for `serve(sockets=[...])` inside a running event loop; set `should_exit` to end it."""
    config = uvicorn.Config(application, log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=75)
    return Server(config)


async def stop(running: Server, task: asyncio.Task[None]) -> None:
    """End a server within a second; open connections are cut."""
    running.should_exit = True
    try:
        await asyncio.wait_for(task, 1.0)
    except TimeoutError:
        running.force_exit = True
