"""What a long command shows on stderr while it works: a spinner and the time, or plain lines where nobody watches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Item = TypeVar("Item")


@contextmanager
def working(text: str, console: Console) -> Iterator[None]:
    """Show that something of unknown length is going on."""
    if not console.is_terminal:
        console.print(f"{text} ...", highlight=False, markup=False)
        yield
        return
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as shown:
        shown.add_task(text, total=None)
        yield


def each(items: Iterable[Item], total: int, text: str, console: Console) -> Iterator[Item]:
    """Go through items, with a bar that says how many are done; nothing is shown where nobody watches."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(text, total=total)
        for item in items:
            yield item
            shown.advance(task)
