"""How numbers, tables and errors look on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
PIPE_WIDTH: Final = 240
"""Columns of a table that goes to a file or a pipe, where nothing should be cut off."""


def bytes_text(count: float) -> str:
    """A size for people: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError(count)


def count_text(count: int, one: str = "", many: str = "") -> str:
    """A count with thousands apart, and its noun: ``336,776 records``."""
    noun = one if count == 1 else many or f"{one}s"
    return f"{count:,} {noun}" if one else f"{count:,}"


def time_text(timestamp_ms: int) -> str:
    """A moment in UTC to the millisecond; a dash for none."""
    if timestamp_ms < 0:
        return "–"
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def duration_text(duration_ms: int) -> str:
    """A length of time for people: ``3 min 5 s``; a dash for none."""
    if duration_ms < 0:
        return "–"
    seconds = duration_ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s" if duration_ms % 1000 else f"{seconds:.0f} s"
    for unit, length, part, part_length in (("min", 60, "s", 1), ("h", 3600, "min", 60), ("d", 86_400, "h", 3600)):
        if seconds < length * (60 if unit == "min" else 24) or unit == "d":
            whole, rest = divmod(int(seconds), length)
            return f"{whole:,} {unit}" + (f" {rest // part_length} {part}" if rest // part_length else "")
    raise AssertionError(duration_ms)


def print_json(value: Any) -> None:
    """One JSON value on standard output, keys in the order given."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def console(*, error: bool = False) -> Console:
    """A console whose tables are not cut to 80 columns when nobody looks."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """A table; columns whose name begins with ``>`` are numbers and stand on the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0)
    )
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    for row in rows:
        # Names come from users and may hold what rich takes for markup.
        table.add_row(*(Text(cell) for cell in row))
    console().print(table)


def say(text: str) -> None:
    """A line for people, on standard error, so that it never mixes with output."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@contextmanager
def progress(
    description: str, *, total: int | None, shown: bool, counted: str = ""
) -> Iterator[Callable[[int, int | None, str], None]]:
    """A progress bar on standard error while the block runs, if it is a terminal and ``shown``.

    The block calls what it is given with how far it is and how far it has to go (in bytes, or in what is ``counted``; None is not
    known), and a note.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda done, total, note: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TransferSpeedColumn,
    )

    amounts: list[ProgressColumn] = [DownloadColumn(binary_units=True), TransferSpeedColumn()]
    if counted:
        amounts = [MofNCompleteColumn(), TextColumn(counted)]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        *amounts,
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console(error=True), transient=True) as bars:
        task = bars.add_task(description, total=total, note="")
        yield lambda done, total, note: bars.update(task, completed=done, total=total, note=note)
