"""How numbers, tables and errors look on a terminal."""

from __future__ import annotations

import itertools
import shutil
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
"""Columns of text that goes to a file or a pipe."""
TABLE_GAP_MAX: Final = 3
"""Spaces between columns where there is room."""
PROSE_WIDTH_MIN: Final = 24
"""Prose that is narrower is hard to read: its table becomes blocks of lines."""


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
    """A console that wraps at the terminal's width, or at ``PIPE_WIDTH`` if the output is no terminal."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """A table on standard output, nothing of which is ever cut; see ``table_text``."""
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else None
    sys.stdout.write(table_text(columns, rows, title=title, width=width, bold=is_terminal))


def table_text(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    width: int | None = None,
    bold: bool = False,
) -> str:
    """A table of ``width`` columns of a terminal at most, or of one line a row if that is None.

    A heading that begins with ``>`` stands over numbers, on the right; one that begins with ``~`` over prose, which may be wrapped
    between words. If that is not enough, each row becomes a block of lines, a cell in each: a name or number is never cut.
    """
    headings = [column.removeprefix(">").removeprefix("~") for column in columns]
    cells = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(map(_cells, column)) for column in zip(headings, *cells, strict=True)]
    gap = TABLE_GAP_MAX
    if width is not None and cells:
        gap = next((gap for gap in range(TABLE_GAP_MAX, 1, -1) if _row_width(widths, gap) <= width), 1)
        if _row_width(widths, gap) > width:
            narrower = _narrowed(columns, cells, widths, width - _row_width([0] * len(widths), gap))
            if narrower is None:
                return "".join(f"{line}\n" for line in [*([title] if title else []), *_blocks(headings, cells)])
            widths = narrower
    lines = [title] if title else []
    head = _line(columns, widths, headings, gap)
    lines.append(f"\x1b[1m{head}\x1b[0m" if bold else head)
    for row in cells:
        wrapped = [
            _wrapped(cell, widths[index]) if _cells(cell) > widths[index] else [cell] for index, cell in enumerate(row)
        ]
        lines += [_line(columns, widths, parts, gap) for parts in itertools.zip_longest(*wrapped, fillvalue="")]
    return "".join(f"{line}\n" for line in lines)


def _narrowed(
    columns: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int], room: int
) -> list[int] | None:
    """Widths with which prose fits beside all other columns into ``room``; None if it would be too narrow, or lose words."""
    prose = [index for index, column in enumerate(columns) if column.startswith("~")]
    narrowed = list(widths)
    room -= sum(width for index, width in enumerate(widths) if index not in prose)
    for done, index in enumerate(sorted(prose, key=widths.__getitem__)):
        narrowed[index] = min(widths[index], room // (len(prose) - done))
        room -= narrowed[index]
        words = [_cells(word) for row in cells for word in row[index].split()]
        if narrowed[index] < widths[index] and narrowed[index] < max([PROSE_WIDTH_MIN, *words]):
            return None
    return narrowed if prose else None


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of ``width`` columns at most, if no word is longer. Words are never broken, also not at a hyphen: they may be names."""
    lines: list[str] = []
    for word in text.split():
        if lines and _cells(lines[-1]) + 1 + _cells(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _row_width(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _line(columns: Sequence[str], widths: Sequence[int], cells: Sequence[str], gap: int) -> str:
    padded = []
    for column, width, cell in zip(columns, widths, cells, strict=True):
        space = " " * (width - _cells(cell))
        padded.append(f"{space}{cell}" if column.startswith(">") else f"{cell}{space}")
    return (" " * gap).join(padded).rstrip()


def _blocks(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    """Each row as lines of heading and cell, with an empty line between rows."""
    head_width = max(map(_cells, headings))
    for number, row in enumerate(row for row in rows if any(row)):
        if number:
            yield ""
        for heading, cell in zip(headings, row, strict=True):
            if heading or cell:
                yield f"{heading}{' ' * (head_width - _cells(heading))}  {cell}".rstrip()


def _printable(text: str) -> str:
    """Names come from users: in a table they end no line and move no cursor."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _cells(text: str) -> int:
    """Columns that ``text`` takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def say(text: str) -> None:
    """A line for people, on standard error, so that it never mixes with output."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@contextmanager
def progress(
    description: str, *, total: int | None, shown: bool, counted: str = ""
) -> Iterator[Callable[[int, int | None, str], None]]:
    """A progress bar on standard error while the block runs, if it is a terminal and ``shown``.

    The block is given a function. It calls it with the amount done, the total (None if it is not known), and a note. Amounts are
    in bytes, or in the unit that ``counted`` names.
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
