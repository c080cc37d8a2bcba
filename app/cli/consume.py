"""``firn consume``: records of a topic, from anywhere to anywhere, to standard output.

Tests: ``tests/cli/test_commands.py``.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.output import count_text, progress, say, time_text
from app.cli.session import BOOTSTRAP_DEFAULT, Bootstrap, connected, parse_moment, run_async
from app.core.errors import BrokerUnavailable, ConfigError, ErrorCode, RequestRejected
from app.core.units import Offset, PartitionIndex, TopicPartition

if TYPE_CHECKING:
    from app.cli.decoding import SchemaDecoder
    from app.client.cluster import ClusterClient
    from app.records.record import Record

POLL_MS: Final = 1_000
AWAY_PAUSE_S: Final = 1.0
"""Between two tries of a reader that follows, once the client has given up."""
EARLIEST_WORDS: Final = ("earliest", "beginning", "start")
LATEST_WORDS: Final = ("latest", "end")
PLACEHOLDERS: Final = "topic, partition, offset, timestamp, time, key, value, headers, key_bytes, value_bytes"

Formatter = Callable[[str, int, "Record"], bytes]


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.")],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="earliest (beginning), latest (end), an offset (1000), the last records of each partition (last:10), or a time.",
        ),
    ] = "earliest",
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="PLACE",
            help="Stop before an offset or a time; default: latest (now).",
        ),
    ] = None,
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=0, help="Stop after N records.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records instead of stopping at the end.")
    ] = False,
    template: Annotated[
        str,
        typer.Option(
            "--format", metavar="TEXT", help=f"What is printed of each record: text and {{…}} of {PLACEHOLDERS}."
        ),
    ] = "{value}\\n",
    read_committed: Annotated[
        bool, typer.Option("--read-committed", help="Skip records of open and aborted transactions.")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Decode keys and values by the schemas that they name, into JSON.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print each record as one line of JSON.")] = False,
) -> int:
    """Print records of a topic.

    Write a time as 2013-07-01, 2013-07-01T12:00:00Z, @1372636800000 (milliseconds) or -15min (15 minutes ago).
    """
    if follow and until is not None:
        raise ConfigError("--follow never stops, but --until does: use only one of them.")
    formatter = json_line if as_json else compile_format(template)

    async def work() -> int:
        from app.machine.runtime import SystemClock

        now_ms = SystemClock().now_ms()
        async with connected(bootstrap) as cluster:
            chosen = await _chosen(cluster, topic, partitions)
            places = _Places(cluster, chosen, now_ms, read_committed=read_committed)
            positions, notes = await places.starts(start)
            ends = None if follow else await places.ends(until)
            for note in notes:
                say(note)
            decoder = None
            if schema:
                from app.cli.decoding import SchemaDecoder

                decoder = SchemaDecoder(cluster)
            result = await _print(cluster, positions, ends, count, formatter, decoder, read_committed=read_committed)
            if decoder is not None and decoder.undecoded:
                say(f"{count_text(decoder.undecoded, 'value')} printed as stored. The first is {decoder.first_fault}.")
            return result

    return run_async(work)


async def _chosen(cluster: ClusterClient, topic: str, partitions: Sequence[int] | None) -> list[TopicPartition]:
    from app.client.admin import AdminClient

    view = await AdminClient(cluster).describe_topic(topic)
    total = len(view.partitions)
    for partition in partitions or ():
        if partition >= total:
            raise RequestRejected(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {topic} has only {count_text(total, 'partition')}, so there is no partition {partition}.",
            )
    wanted = sorted(set(partitions)) if partitions else range(total)
    return [TopicPartition(topic, PartitionIndex(partition)) for partition in wanted]


class _Places:
    """Turns ``--from`` and ``--until`` into offsets."""

    def __init__(
        self, cluster: ClusterClient, partitions: Sequence[TopicPartition], now_ms: int, *, read_committed: bool
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._now_ms = now_ms
        self._read_committed = read_committed

    async def starts(self, place: str) -> tuple[dict[TopicPartition, Offset], list[str]]:
        """The first offset to read of each partition, and notes on it for the user. Raises: ConfigError and as ``_list``."""
        from app.client.cluster import EARLIEST, LATEST

        earliest, latest = await self._list(EARLIEST), await self._list(LATEST)
        notes: list[str] = []
        if place in EARLIEST_WORDS:
            return earliest, notes
        if place in LATEST_WORDS:
            return latest, notes
        if match := re.fullmatch(r"last:(\d{1,18})", place):
            return {p: Offset(max(earliest[p], latest[p] - int(match[1]))) for p in self._partitions}, notes
        if re.fullmatch(r"\d{1,18}", place):
            asked = int(place)
            for partition in self._partitions:
                if asked < earliest[partition]:
                    notes.append(f"{partition} begins at offset {earliest[partition]}; reading starts there.")
                elif asked > latest[partition]:
                    notes.append(f"{partition} ends at offset {latest[partition]}; there is no record at {asked} yet.")
            return {p: Offset(min(max(asked, earliest[p]), latest[p])) for p in self._partitions}, notes
        return await self._at(place, "--from", latest), notes

    async def ends(self, place: str | None) -> dict[TopicPartition, Offset]:
        """Where to stop in each partition. Raises: as ``starts``."""
        from app.client.cluster import LATEST

        latest = await self._list(LATEST)
        if place is None or place in LATEST_WORDS:
            return latest
        if re.fullmatch(r"\d{1,18}", place):
            return {partition: Offset(min(int(place), latest[partition])) for partition in self._partitions}
        return await self._at(place, "--until", latest)

    async def _at(self, place: str, flag: str, latest: dict[TopicPartition, Offset]) -> dict[TopicPartition, Offset]:
        try:
            moment = parse_moment(place, flag, self._now_ms)
        except ConfigError as error:
            raise ConfigError(f"{str(error).rstrip('.')}; or earliest, latest, an offset, or last:10.") from None
        found = await self._list(moment)
        return {p: latest[p] if found[p] < 0 else found[p] for p in self._partitions}

    async def _list(self, timestamp: int) -> dict[TopicPartition, Offset]:
        answer = await self._cluster.list_offsets(
            dict.fromkeys(self._partitions, timestamp), read_committed=self._read_committed
        )
        return {partition: Offset(listed.offset) for partition, listed in answer.items()}


async def _print(
    cluster: ClusterClient,
    positions: dict[TopicPartition, Offset],
    ends: dict[TopicPartition, Offset] | None,
    count: int | None,
    formatter: Formatter,
    decoder: SchemaDecoder | None,
    *,
    read_committed: bool,
) -> int:
    from app.client.cluster import EARLIEST
    from app.client.consumer import Consumer

    left = -1 if count is None else count
    ahead = None if ends is None else sum(max(ends[one] - start, 0) for one, start in positions.items())
    total = count if ahead is None or (count is not None and count < ahead) else ahead
    reached = dict(positions)
    # A bar among the records on one screen would be in their way.
    has_bar = not sys.stdout.isatty() and total is not None
    # Retention may delete records before a slow reader gets to them. They are skipped: no reader can have them any more.
    async with Consumer(cluster, read_committed=read_committed, reset_to=EARLIEST) as consumer:
        with progress("consume", total=total, shown=has_bar, counted="records") as report:
            consumer.assign(positions)
            _unassign_finished(consumer, ends)
            trouble = ""
            while consumer.assignment and left:
                out: list[bytes] = []
                try:
                    batches = await consumer.poll(POLL_MS)
                except BrokerUnavailable:
                    if ends is not None:
                        raise
                    batches = []  # a reader that follows waits for its brokers
                    await asyncio.sleep(AWAY_PAUSE_S)
                if bool(consumer.trouble) != bool(trouble):
                    say(f"{consumer.trouble} Trying again." if consumer.trouble else "The brokers respond again.")
                trouble = consumer.trouble
                for batch in batches:
                    topic, partition = batch.partition
                    end = None if ends is None else ends[batch.partition]
                    for record in batch.records():
                        if not left or (end is not None and record.offset >= end):
                            break
                        shown = record if decoder is None else await decoder.decoded(record)
                        out.append(formatter(topic, partition, shown))
                        left -= 1
                    at = consumer.position(batch.partition)
                    reached[batch.partition] = at if end is None else min(at, end)
                if out:
                    _write(b"".join(out))
                _unassign_finished(consumer, ends)
                passed = sum(reached[one] - start for one, start in positions.items())
                report(count - left if count is not None and total == count else passed, total, "")
    return 0


def _unassign_finished(consumer: Any, ends: dict[TopicPartition, Offset] | None) -> None:
    for partition in consumer.assignment:
        if ends is not None and consumer.position(partition) >= ends[partition]:
            consumer.unassign(partition)


def _write(data: bytes) -> None:
    """Write all of ``data`` to standard output, at once. The command ends if the reader has closed its end of the pipe."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(sys.stdout.fileno(), view) :]
    except BrokenPipeError:
        raise typer.Exit from None


# --- how a record is printed ----------------------------------------------------------------------------------------


def unescape(text: str) -> str:
    """``\\t``, ``\\n``, ``\\r``, ``\\0`` and ``\\\\`` as the characters they stand for; anything else stays as it is."""
    known = {"t": "\t", "n": "\n", "r": "\r", "0": "\0", "\\": "\\"}
    return re.sub(r"\\([tnr0\\])", lambda match: known[match[1]], text)


def compile_format(template: str) -> Formatter:
    """A function that prints one record by a template; ``{{`` and ``}}`` are braces.

    A line's end is added where the template has none, unless it ends with ``\\c``. Raises: ConfigError.
    """
    if template.endswith("\\c"):
        template = template[:-2]
    elif not template.endswith(("\\n", "\n")):
        template += "\\n"
    pieces: list[Formatter] = []
    for literal, name in re.findall(r"((?:[^{}]|\{\{|\}\})+)|(\{[^{}]*\}|[{}])", template):
        if literal:
            text = unescape(literal).replace("{{", "{").replace("}}", "}").encode(errors="surrogateescape")
            pieces.append(_constant(text))
        elif name[1:-1] in _FIELDS:
            pieces.append(_FIELDS[name[1:-1]])
        else:
            raise ConfigError(
                f"--format has {name!r}, which is none of {PLACEHOLDERS}; a brace itself is written twice."
            )
    if len(pieces) == 2 and pieces[0] is _FIELDS["value"] and template == "{value}\\n":
        return lambda topic, partition, record: (record.value or b"") + b"\n"
    return lambda topic, partition, record: b"".join(piece(topic, partition, record) for piece in pieces)


def _constant(text: bytes) -> Formatter:
    return lambda topic, partition, record: text


def _headers(record: Record) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)


_FIELDS: Final[dict[str, Formatter]] = {
    "topic": lambda topic, partition, record: topic.encode(),
    "partition": lambda topic, partition, record: b"%d" % partition,
    "offset": lambda topic, partition, record: b"%d" % record.offset,
    "timestamp": lambda topic, partition, record: b"%d" % record.timestamp,
    "time": lambda topic, partition, record: time_text(record.timestamp).encode(),
    "key": lambda topic, partition, record: record.key or b"",
    "value": lambda topic, partition, record: record.value or b"",
    "headers": lambda topic, partition, record: _headers(record),
    "key_bytes": lambda topic, partition, record: b"%d" % (-1 if record.key is None else len(record.key)),
    "value_bytes": lambda topic, partition, record: b"%d" % (-1 if record.value is None else len(record.value)),
}


def json_line(topic: str, partition: int, record: Record) -> bytes:
    """A record as one line of JSON; bytes that are not UTF-8 come as ``{"base64": …}``."""
    import msgspec

    return (
        msgspec.json.encode(
            {
                "topic": topic,
                "partition": partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": _json_bytes(record.key),
                "value": _json_bytes(record.value),
                "headers": [[name, _json_bytes(value)] for name, value in record.headers],
            }
        )
        + b"\n"
    )


def _json_bytes(data: bytes | None) -> Any:
    if data is None:
        return None
    if type(data) is not bytes:  # a decoded part, which is JSON already
        import msgspec

        return msgspec.Raw(data)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": data}  # msgspec writes bytes as base64
