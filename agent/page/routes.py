"""The live page over HTTP: read-only, small, and made at most once a second however many look at it.

    /                  the page, filled, under a strict Content-Security-Policy
    /api/page          what changes on it, with an ETag: 304 and no body while nothing has
    /static/...        its scripts and its style; plotly's name holds the digest of its text, so it is fetched once

Everything is compressed for those who can read it; plotly once, in a thread, because that takes a tenth of a second.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ranksight.agent.page import pages

FRESH_SECONDS = 1.0
STATIC = {"page.js": "text/javascript", "page.css": "text/css"}

Report = dict[str, Any]


@dataclass(slots=True)
class _Cached:
    """The newest state of the page; made again when it is older than FRESH_SECONDS."""

    report: Callable[[], Report]
    run: Callable[[], Report]
    clock: Callable[[], float]
    state: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    etag: str = ""
    made: float = field(default=-1e9)

    def refresh(self) -> None:
        if self.clock() - self.made < FRESH_SECONDS:
            return
        self.state = pages.state(self.report(), self.run())
        self.body = json.dumps(self.state, allow_nan=False, separators=(",", ":")).encode()
        self.etag = f'"{hashlib.sha256(self.body).hexdigest()[:20]}"'
        self.made = self.clock()


def routes(
    report: Callable[[], Report], run: Callable[[], Report], clock: Callable[[], float] = time.monotonic
) -> list[Route]:
    """The routes over the report as it stands now, and run.json (empty where there is none)."""
    cached = _Cached(report, run, clock)
    squeezed: dict[str, bytes] = {}

    async def page(request: Request) -> Response:
        cached.refresh()
        html = pages.live(cached.state).encode()
        headers = {"Content-Security-Policy": pages.LIVE_POLICY, "Cache-Control": "no-store"}
        return _answer(request, html, "text/html", headers)

    async def state(request: Request) -> Response:
        cached.refresh()
        headers = {"ETag": cached.etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == cached.etag:
            return Response(status_code=304, headers=headers)
        return _answer(request, cached.body, "application/json", headers)

    async def plotly(request: Request) -> Response:
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return _answer(request, pages.plotly().encode(), "text/javascript", _FOR_GOOD)
        if not squeezed:
            squeezed["plotly"] = await asyncio.to_thread(lambda: gzip.compress(pages.plotly().encode(), 5))
        return Response(squeezed["plotly"], headers=_head("text/javascript", _FOR_GOOD) | {"Content-Encoding": "gzip"})

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            return Response("there is no such file", status_code=404)
        return _answer(request, pages.asset(name).encode(), STATIC[name], {"Cache-Control": "no-cache"})

    return [
        Route("/", page),
        Route("/api/page", state),
        Route(pages.plotly_path(), plotly),
        Route("/static/{name}", static),
    ]


_FOR_GOOD = {"Cache-Control": "public, max-age=31536000, immutable"}


def _head(kind: str, more: dict[str, str]) -> dict[str, str]:
    known = {"Content-Type": f"{kind}; charset=utf-8", "Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff"}
    return known | more


def _answer(request: Request, body: bytes, kind: str, more: dict[str, str]) -> Response:
    """A body, compressed when the other side can read that. Level 1: the default is ten times slower."""
    headers = _head(kind, more)
    if "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["Content-Encoding"] = gzip.compress(body, compresslevel=1), "gzip"
    return Response(body, headers=headers)
