"""``firn produce``: lines of a file or of standard input become records. Tests: ``tests/cli/test_commands.py``."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.cli.output import bytes_text, count_text, print_json, progress, say
from app.cli.session import BOOTSTRAP_DEFAULT, Bootstrap, Json, connected, parse_assignments, parse_moment, run_async
from app.core.errors import ConfigError, FirnError, LimitExceeded, copy_of
from app.core.limits import MIB
from app.core.units import TimestampMs

if TYPE_CHECKING:
    import asyncio

    from app.client.producer import Acknowledged

READ_BYTES: Final = 1 * MIB
FAILURES_BEFORE_TOLD: Final = 4
"""After so many tries, which take less than a second, the command prints the broker's error."""
LINE_BYTES_MAX: Final = 64 * MIB
"""Longest line; no broker takes a record as long as that."""


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    ALL = "all"
    ONE = "1"
    NONE = "0"


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to write to.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="File with one record per line; default: standard input."),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-k", metavar="TEXT", help="Separator between key and value, for example a tab: '\\t'."
        ),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header for every record; may be repeated."),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Send to this partition.")] = None,
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", metavar="MOMENT", help="Timestamp of every record; default: now.")
    ] = None,
    empty_is_null: Annotated[
        bool, typer.Option("--empty-is-null", help="Send empty values as null (tombstones).")
    ] = False,
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="Codec of the batches.")
    ] = Compression.NONE,
    acks: Annotated[
        Acks, typer.Option("--acks", help="Which replicas must store a record before it counts as sent.")
    ] = Acks.ALL,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing on success.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> int:
    """Send lines as records, from a file or standard input."""
    separator = None if key_separator is None else _unescaped(key_separator)
    if separator == b"":
        raise ConfigError("--key-separator is empty; give the text between key and value.")
    record_headers = tuple(
        (name, value.encode(errors="surrogateescape"))
        for name, value in parse_assignments(headers or (), "--header").items()
    )

    async def work() -> int:
        import asyncio

        from app.client.producer import Producer
        from app.machine.runtime import SystemClock
        from app.records.compression import Codec

        clock = SystemClock()
        moment = None if timestamp is None else parse_moment(timestamp, "--timestamp", clock.now_ms())
        tally = _Tally()
        loop = asyncio.get_running_loop()
        with _opened(file) as source:
            size = _size_of(source)
            async with connected(bootstrap) as cluster:
                producer = Producer(
                    cluster,
                    clock,
                    acks={Acks.ALL: -1, Acks.ONE: 1, Acks.NONE: 0}[acks],
                    compression=Codec[compression.name],
                    linger_ms=10,
                    on_retry=_Trouble().told,
                )
                started = loop.time()
                show = file is not None and not quiet
                with progress(f"to {topic}", total=size, shown=show) as report:
                    async with producer:
                        async for line in _lines(source):
                            parts = _split(line, separator)
                            if parts is None:
                                tally.fail(
                                    ConfigError(
                                        f"Line {tally.sent + 1} has no key separator {key_separator!r}; "
                                        "earlier lines were sent, this line and later lines were not."
                                    )
                                )
                                break
                            key, value = parts
                            tally.add(
                                await producer.send(
                                    topic,
                                    None if empty_is_null and not value else value,
                                    key=key,
                                    headers=record_headers,
                                    timestamp=None if moment is None else TimestampMs(moment),
                                    partition=partition,
                                ),
                                len(line),
                            )
                            if not tally.sent & 0x3FF:
                                report(tally.sent_bytes, size, f"{tally.acknowledged:,} acknowledged")
                            if tally.failure is not None:
                                break
                        await producer.flush()
                seconds = loop.time() - started
        tally.print(topic, seconds, as_json=as_json, quiet=quiet)
        if tally.failure is not None:
            raise copy_of(tally.failure)
        return 0

    return run_async(work)


class _Trouble:
    """Tells a person why it takes long: each reason once, when it has lasted."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def told(self, error: FirnError, attempts: int) -> None:
        """Note one failure of a batch, its ``attempts``-th in a row."""
        reason = str(error)
        if attempts >= FAILURES_BEFORE_TOLD and reason not in self._told:
            self._told.add(reason)
            say(f"Not acknowledged yet, trying again: {reason.rstrip('.')}. Ctrl-C stops it.")


class _Tally:
    """Counts of the records sent, acknowledged and failed."""

    def __init__(self) -> None:
        self.sent = 0
        self.sent_bytes = 0
        self.acknowledged = 0
        self.failed = 0
        self.failure: FirnError | None = None
        self.ranges: dict[int, tuple[int, int]] = {}
        """First offset and end offset of the records written, by partition."""

    def add(self, answer: asyncio.Future[Acknowledged], size: int) -> None:
        self.sent += 1
        self.sent_bytes += size + 1
        answer.add_done_callback(self._answered)

    def _answered(self, answer: asyncio.Future[Acknowledged]) -> None:
        error = answer.exception()
        if error is None:
            stored = answer.result()
            self.acknowledged += 1
            if stored.offset >= 0:
                first, end = self.ranges.get(stored.partition.partition, (stored.offset, stored.offset))
                self.ranges[stored.partition.partition] = (min(first, stored.offset), max(end, stored.offset + 1))
            return
        self.failed += 1
        assert isinstance(error, FirnError)
        self.fail(error)

    def fail(self, error: FirnError) -> None:
        """Note the error that ends the command. The first one counts."""
        self.failure = self.failure or error

    def print(self, topic: str, seconds: float, *, as_json: bool, quiet: bool) -> None:
        if as_json:
            print_json(
                {
                    "topic": topic,
                    "records": self.acknowledged,
                    "failed": self.failed,
                    "bytes": self.sent_bytes,
                    "seconds": round(seconds, 3),
                    "partitions": [
                        {"partition": partition, "first_offset": first, "end_offset": end}
                        for partition, (first, end) in sorted(self.ranges.items())
                    ],
                }
            )
        elif not quiet or self.failed:
            lost = f"; {count_text(self.failed, 'record')} failed" if self.failed else ""
            rate = f" ({bytes_text(self.sent_bytes / seconds)}/s)" if seconds >= 0.5 else ""
            where = f" in {count_text(len(self.ranges), 'partition')}" if len(self.ranges) > 1 else ""
            say(
                f"{count_text(self.acknowledged, 'record')}, {bytes_text(self.sent_bytes)}, to {topic}{where} in "
                f"{seconds:.1f} s{rate}{lost}."
            )


class _opened:  # noqa: N801 (used like a function)
    """The descriptor to read; closed again unless it is standard input."""

    def __init__(self, file: Path | None) -> None:
        self._file = None if file is None or str(file) == "-" else file
        self._descriptor = -1

    def __enter__(self) -> int:
        self._descriptor = sys.stdin.fileno() if self._file is None else os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
        return self._descriptor

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            os.close(self._descriptor)


def _size_of(descriptor: int) -> int | None:
    """Bytes to come, if that is known."""
    status = os.fstat(descriptor)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


async def _lines(descriptor: int) -> AsyncIterator[bytes]:
    """Lines without their ends, as soon as they are there; the last may lack its end.

    Reading may wait for a person, so a daemon thread reads: at Ctrl-C the process ends without waiting for the next line.
    """
    import asyncio
    import threading

    loop = asyncio.get_running_loop()
    rest = b""
    while True:
        chunk: asyncio.Future[bytes] = loop.create_future()

        def read(chunk: asyncio.Future[bytes] = chunk) -> None:
            try:
                data = os.read(descriptor, READ_BYTES)
            except OSError as error:
                loop.call_soon_threadsafe(_settle, chunk, None, error)
            else:
                loop.call_soon_threadsafe(_settle, chunk, data, None)

        threading.Thread(target=read, daemon=True).start()
        data = await chunk
        if not data:
            break
        lines = (rest + data).split(b"\n") if b"\n" in data else None
        if lines is None:
            rest += data
        else:
            rest = lines.pop()
            for line in lines:
                yield line
        if len(rest) > LINE_BYTES_MAX:
            raise LimitExceeded(f"A line is longer than {bytes_text(LINE_BYTES_MAX)}; is this a text file?")
    if rest:
        yield rest


def _settle(future: asyncio.Future[bytes], data: bytes | None, error: OSError | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(data or b"")


def _split(line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes] | None:
    """Key and value of a line; None if the separator is not in it."""
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    return (key, value) if found else None


def _unescaped(text: str) -> bytes:
    """The text with ``\\t``, ``\\n``, ``\\0`` and ``\\\\`` read as in a shell's printf."""
    from app.cli.consume import unescape

    return unescape(text).encode(errors="surrogateescape")
