"""``verify`` and ``audit`` name whatever is wrong; ``replay`` produces each record once, however often it is started."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import re
import shutil
import signal
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from app.cli import main
from app.core.errors import ConfigError, StorageFull
from app.core.units import Offset, PartitionIndex, TimestampMs, TopicIdPartition
from app.machine.terminating import ended_by_signals
from app.metadata.log.log_format import decode_entry, encode_entry, encode_value
from app.metadata.manifest.manifest import SegmentEntry
from app.objectstore.directory import DirectoryStore
from app.records.batch import HEADER_BYTES, rewrite_header
from app.records.builder import build_batch
from app.tiering.repair.verify import Finding, FindingKind
from pyspark_firn import count
from pyspark_firn.jobs.audit_report import MENDS, write_report
from pyspark_firn.jobs.compact import compact
from pyspark_firn.jobs.inspection import inspect
from pyspark_firn.jobs.replay import Replay, ReplayRequest, ReplayState, replay
from pyspark_firn.jobs.running import ProcessRunner
from pyspark_firn.jobs.targets import Folder
from tests.spark.conftest import Topic
from tests.spark.reading_back import produced
from tests.support.broker import running_broker
from tests.support.buckets import BucketBuilder

NOW_MS = 1_700_000_000_000


async def make_topic(path: Path, name: str = "t", seed: int = 0) -> Topic:
    bucket = await BucketBuilder.open(path, seed=seed)
    topic_id = await bucket.create_topic(name, 2)
    for partition in (0, 1):
        for first in (0, 100):
            made = [
                build_batch(
                    [(NOW_MS + n, b"k%d" % n, b"v%d" % n, (("own", b"1"),)) for n in range(start, start + 20)],
                    base_offset=Offset(start),
                )
                for start in range(first, first + 100, 20)
            ]
            await bucket.add_segment(topic_id, partition, made, chunk_bytes=900)
    return Topic(path, name, topic_id, 2)


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return asyncio.run(make_topic(tmp_path / "bucket"))


def segment(topic: Topic, partition: int, base: int) -> Path:
    [path] = (topic.path / "data").glob(f"*/{topic.topic_id}/{partition}/{base:020d}-*.seg")
    return path


def test_a_sound_bucket_is_proven_and_its_report_is_sealed(topic: Topic, tmp_path: Path) -> None:
    found = inspect(topic.store, ProcessRunner(1))
    assert (found.is_sound, found.findings, len(found.facts), found.partitions) == (True, [], 4, 2)
    table, page = write_report(found, tmp_path / "audit", made=datetime.now(UTC))
    rows = pq.read_table(table).to_pylist()
    assert [(row["partition"], row["base_offset"], row["records"]) for row in rows] == [
        (0, 0, 100), (0, 100, 100), (1, 0, 100), (1, 100, 100),
    ]  # fmt: skip
    assert rows[0]["sha256"] == rows[2]["sha256"] != rows[1]["sha256"]
    shown = Shown(page)
    assert shown.has("✓ Sound", "Segments 4", "Records 400", "the whole bucket")
    assert shown.has(hashlib.sha256(table.read_bytes()).hexdigest(), "sha256sum segments.parquet", "Signature")
    assert shown.has("t-0 [0, 200) 2 200", "t-1 [0, 200) 2 200", "2023-11-14 22:13:20")


class Shown(HTMLParser):
    """What a browser would show of a page, whose elements are all closed and none of which loads or runs anything."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text, self.open = "", list[str]()
        self.feed(path.read_text(encoding="utf-8"))
        assert not self.open
        self.text = " ".join(self.text.split())

    def has(self, *parts: str) -> bool:
        return all(part in self.text for part in parts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"script", "link", "img", "iframe", "object", "base", "form"}
        assert not {"href", "src", "style"} & {name for name, _ in attrs}
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += f"{data} "
        else:
            assert "url(" not in data
            assert "@import" not in data


def test_a_report_names_what_is_damaged_and_its_mend_first(topic: Topic, tmp_path: Path) -> None:
    damaged, lost = segment(topic, 0, 100), segment(topic, 1, 0)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    lost.unlink()
    orphan = topic.path / "data" / "00" / str(topic.topic_id) / "0" / f"{200:020d}-{uuid.UUID(int=7)}.seg"
    found = inspect(topic.store, ProcessRunner(1))
    found.findings.insert(0, Finding(FindingKind.ORPHAN_OBJECT, None, str(orphan), "7 bytes"))
    _, page = write_report(found, tmp_path / "audit", made=datetime.now(UTC))
    shown = Shown(page)
    assert shown.has("✗ Damaged: 2 findings", "2 of 4 segments could not be proven", "Records 200", "1 of 2")
    assert shown.has(
        "Object damaged in t-0",
        f"{damaged.name}",
        "Object missing in t-1",
        lost.name,
        "the object with records [0, 100) is missing",
    )
    assert shown.has(*(MENDS[finding.kind] for finding in found.findings))
    assert shown.text.index("Object missing") < shown.text.index("Orphan object")


def test_a_report_says_what_to_do_about_every_kind_of_finding() -> None:
    assert set(MENDS) == set(FindingKind)


def test_what_a_bucket_says_is_text_in_a_report(topic: Topic, tmp_path: Path) -> None:
    evil = "<script src='//x'>&amp;\"</code>"
    found = inspect(topic.store, ProcessRunner(1))
    found.store, found.cluster_id, found.topics = f"file:///{evil}", evil, (evil,)
    found.names = {topic.topic_id: evil}
    found.facts = [replace(one, topic=evil) for one in found.facts]
    found.findings = [
        Finding(kind, TopicIdPartition(topic.topic_id, PartitionIndex(0)), f"data/{evil}\udcff", evil)
        for kind in FindingKind
    ]
    _, page = write_report(found, tmp_path / "audit", made=datetime.now(UTC))
    assert Shown(page).text.count(evil) > 4 * len(FindingKind) - 10


def test_the_least_time_of_a_segment_is_that_of_a_record(tmp_path: Path) -> None:
    """Not what a producer said where the broker's time counts, nor that of a batch that compaction has emptied."""

    async def make() -> Topic:
        bucket = await BucketBuilder.open(tmp_path / "bucket")
        topic_id = await bucket.create_topic("t")
        made = [
            build_batch([], last_offset_delta=4),
            build_batch([(1000, None, b"v", ())], base_offset=Offset(5), log_append_time=TimestampMs(NOW_MS + 7)),
            build_batch([(NOW_MS + 9, None, b"v", ())], base_offset=Offset(6)),
        ]
        await bucket.add_segment(topic_id, 0, made)
        return Topic(tmp_path / "bucket", "t", topic_id)

    [facts] = inspect(asyncio.run(make()).store, ProcessRunner(1)).facts
    assert (facts.problem, facts.min_timestamp, facts.max_timestamp) == ("", NOW_MS + 7, NOW_MS + 9)


def test_batches_that_nobody_can_read_are_found_if_every_record_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def make() -> Topic:
        bucket = await BucketBuilder.open(tmp_path / "bucket")
        topic_id = await bucket.create_topic("t")
        made = [bytearray(build_batch([(1000, b"k", b"v", ())] * 2, base_offset=Offset(2 * n))) for n in range(3)]
        made[1][HEADER_BYTES] = 0xFE
        rewrite_header(made[1], 0)
        await bucket.add_segment(topic_id, 0, [bytes(batch) for batch in made])
        return Topic(tmp_path / "bucket", "t", topic_id)

    store = asyncio.run(make()).store
    assert main(["job", "verify", "--store", store, "-w", "1"]) == 0, "every checksum is right"
    capsys.readouterr()
    assert main(["job", "verify", "--store", store, "-w", "1", "--records", "--json"]) == 1
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["kind"], finding["place"]) == (FindingKind.RECORDS_UNREADABLE, "t-0")
    assert "offsets [2, 4)" in finding["message"]


def test_a_report_that_comes_to_no_end_leaves_nothing_of_itself(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, folder = inspect(topic.store, ProcessRunner(1)), tmp_path / "audit"
    folder.mkdir()
    (folder / "_report.html.0123.tmp").write_bytes(b"what a killed one has left")

    def full(*arguments: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pyspark_firn.jobs.audit_report.html_page", full)
        with pytest.raises(StorageFull, match=r"report\.html: No space left on device; free some space"):
            write_report(found, folder, made=datetime.now(UTC))
    assert not list(folder.iterdir())
    create = Folder.create
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "create", lambda self, path: full() if path == "report.html" else create(self, path))
        with pytest.raises(OSError, match="No space"):
            write_report(found, folder, made=datetime.now(UTC))
    assert not list(folder.iterdir())
    write_report(found, folder, made=datetime.now(UTC))
    assert {path.name for path in folder.iterdir()} == {"segments.parquet", "report.html"}


def test_a_folder_that_cannot_be_is_told_before_anything_is_read(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def reading(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("it was read")

    monkeypatch.setattr("pyspark_firn.jobs.inspection.inspect", reading)
    (tmp_path / "file").touch()
    assert main(["job", "audit", "--store", topic.store, "--to", str(tmp_path / "file" / "audit")]) == 1

    def refused(path: Any, *arguments: Any, **named: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr("pyspark_firn.jobs.targets.os.open", refused)  # A folder that is there, and not to be written.
    capsys.readouterr()
    assert main(["job", "audit", "--store", topic.store, "--to", str(tmp_path)]) == 1
    told = f"firn: Could not write {tmp_path}/segments.parquet: Permission denied; give this user the permission.\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("job", ["archive", "replay", "compact"])
@pytest.mark.parametrize("setting", ["cleanup.policy=compact", "remote.storage.enable=false"])
def test_of_a_topic_that_stays_on_the_brokers_disks_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], job: str, setting: str
) -> None:
    options = {"archive": ["--to", (tmp_path / "lake").as_uri()], "replay": ["--target", "u"], "compact": ["--offline"]}

    async def make() -> None:
        name, _, value = setting.partition("=")
        await (await BucketBuilder.open(tmp_path / "bucket")).create_topic("local", configs={name: value})

    asyncio.run(make())
    assert main(["job", job, "local", "--store", (tmp_path / "bucket").as_uri(), *options[job]]) == 2
    told = (
        f"firn: Nothing of topic 'local' is in the store: its setting {setting} keeps it only on the brokers' disks.\n"
    )
    assert capsys.readouterr().err == told


def test_progress_is_told_in_what_is_counted(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["job", "verify", "--store", topic.store, "-w", "1"]) == 0
    said = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "4/4 segments" in said
    assert "bytes" not in said


@pytest.fixture
def _hangups_end() -> Iterator[None]:
    """Tests that were begun by nohup ignore hangups."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_hangups_end")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_job_is_ended_by_signals_as_by_an_error(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    cleaned = []

    def job() -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(signal.SIGHUP)  # by the shell, besides the kernel's
            cleaned.append(number)

    with pytest.raises(SystemExit) as ended, ended_by_signals():
        job()
    assert ended.value.code == 128 + number
    assert cleaned == [number]
    assert signal.getsignal(number) == before


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_every_kind_of_damage_is_named_with_its_object(topic: Topic) -> None:
    flipped, missing = segment(topic, 0, 100), segment(topic, 1, 0)
    data = bytearray(flipped.read_bytes())
    data[1500] ^= 4
    flipped.write_bytes(data)
    orphan = missing.with_name(f"{7:020d}-00000000-0000-4000-8000-000000000000.seg")
    missing.rename(orphan)
    (topic.path / "data" / "foreign").write_bytes(b"x")
    unfinished = asyncio.run(
        DirectoryStore(topic.path).begin_upload(orphan.relative_to(topic.path).as_posix().replace("-0000", "-1111", 1))
    )
    found = inspect(topic.store, ProcessRunner(1))
    assert not found.is_sound
    named = {(finding.kind, finding.object_key.rpartition("/")[2]) for finding in found.findings}
    assert named == {
        (FindingKind.OBJECT_DAMAGED, flipped.name),
        (FindingKind.OBJECT_MISSING, missing.name),
        (FindingKind.ORPHAN_OBJECT, orphan.name),
        (FindingKind.FOREIGN_OBJECT, "foreign"),
        (FindingKind.ORPHAN_UPLOAD, unfinished.key.rpartition("/")[2]),
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"record_count": 101},
        {"raw_bytes": 1},
        {"min_timestamp": NOW_MS + 99},
        {"max_timestamp": NOW_MS + 200},
        {"chunk_count": 2},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_whatever_a_manifest_says_otherwise_than_the_segment_is_damage(topic: Topic, changes: dict[str, Any]) -> None:
    newest = max((topic.path / "topics" / str(topic.topic_id) / "1" / "log").iterdir())
    entry = decode_entry(newest.name, int(newest.name), newest.read_bytes())
    name, value = entry.records[-1]
    assert value is not None
    told = encode_value(msgspec.msgpack.decode(value, type=SegmentEntry).replace(**changes))
    records = [*entry.records[:-1], (name, told)]
    newest.write_bytes(encode_entry(**{**entry._asdict(), "records": records}))
    found = inspect(topic.store, ProcessRunner(1))
    [finding] = found.findings
    assert (finding.kind, finding.object_key.rpartition("/")[2]) == (
        FindingKind.OBJECT_DAMAGED,
        segment(topic, 1, 100).name,
    )
    assert "the manifest" in finding.message


class RunnerAfter:
    """Lets something happen between the plan and the first check."""

    parallelism = 1

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile: Callable[[], None] | None = meanwhile

    def run(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
        if self._meanwhile is not None:
            self._meanwhile()
            self._meanwhile = None
        yield from map(function, arguments)


def expire_first_segment(topic: Topic) -> None:
    async def expire() -> None:
        manifest = await BucketBuilder(DirectoryStore(topic.path), topic.path, 9).manifest(topic.topic_id, 0)
        first = manifest.finished[0]
        await manifest.delete_started([first.segment_id], log_start_offset=Offset(100))
        segment(topic, 0, 0).unlink()
        await manifest.delete_finished([first.segment_id])

    asyncio.run(expire())


def replace_segments(topic: Topic) -> None:
    old = [segment(topic, 1, 0), segment(topic, 1, 100)]
    compact(topic.store, "t")
    for path in old:
        path.unlink()


def test_what_expires_while_it_is_looked_for_is_counted_and_no_damage(topic: Topic, tmp_path: Path) -> None:
    found = inspect(topic.store, RunnerAfter(lambda: expire_first_segment(topic)))
    assert (found.is_sound, found.findings, len(found.facts), found.expired) == (True, [], 3, 1)
    assert found.as_json()["expired"] == 1
    _, page = write_report(found, tmp_path / "audit", made=datetime.now(UTC))
    assert Shown(page).has("1 more segment was deleted or replaced while this ran")


def test_what_takes_the_place_of_segments_is_looked_at_instead(topic: Topic) -> None:
    found = inspect(topic.store, RunnerAfter(lambda: replace_segments(topic)))
    assert (found.is_sound, found.expired) == (True, 2)
    assert [(one.partition, one.base_offset, one.records) for one in found.facts] == [
        (0, 0, 100), (0, 100, 100), (1, 0, 200),
    ]  # fmt: skip


def test_a_replacement_that_is_missing_too_is_damage(topic: Topic) -> None:
    def lose() -> None:
        replace_segments(topic)
        segment(topic, 1, 0).unlink()

    found = inspect(topic.store, RunnerAfter(lose))
    [finding] = found.findings
    assert (finding.kind, found.is_sound, found.expired) == (FindingKind.OBJECT_MISSING, False, 2)
    assert "[0, 200)" in finding.message


def test_a_partition_that_has_lost_its_manifest_is_damaged(topic: Topic) -> None:
    shutil.rmtree(topic.path / "topics" / str(topic.topic_id) / "1")
    found = inspect(topic.store, ProcessRunner(1))
    assert not found.is_sound
    [finding] = found.findings
    assert (finding.kind, finding.object_key) == (FindingKind.MANIFEST_MISSING, f"topics/{topic.topic_id}/1")
    assert "2 segment objects" in finding.message
    assert {facts.partition for facts in found.facts} == {0}


def test_places_of_this_machine_are_taken_as_file_urls(
    topic: Topic, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lake = ["--iceberg", "lake.t", "--warehouse", (tmp_path / "house").as_uri()]
    assert main(["job", "archive", "t", "--store", topic.store, *lake, "-w", "1"]) == 0
    assert (tmp_path / "house" / "catalog.db").exists()
    report = ["--to", (tmp_path / "report").as_uri()]
    assert main(["job", "audit", "--store", topic.store, *report, "-w", "1"]) == 0
    assert (tmp_path / "report" / "report.html").exists()
    assert not (tmp_path / "file:").exists()
    capsys.readouterr()
    assert main(["job", "archive", "t", "--store", topic.store, *lake[:3], "s3://bucket/x"]) == 2
    assert "'s3://bucket/x' is not a path" in capsys.readouterr().err


def test_the_command_line_archives_and_audits(topic: Topic, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = ["job", "archive", "t", "--store", topic.store, "--to", (tmp_path / "lake").as_uri(), "-w", "1", "--json"]
    assert main(archive) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 400
    assert main(["job", "verify", "--store", topic.store, "-w", "1"]) == 0
    capsys.readouterr()
    segment(topic, 0, 0).unlink()
    assert main(["job", "audit", "--store", topic.store, "--to", str(tmp_path / "a"), "-w", "1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["sound"] is False
    assert main(["job", "archive", "t", "--store", topic.store]) == 2
    capsys.readouterr()
    (tmp_path / "schema").write_bytes(b"\xff\xfe")
    assert main([*archive, "--value", "avro", "--schema", f"@{tmp_path / 'schema'}"]) == 2
    assert "is not a text file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["archive", "t", "--to", "file:///x", "--catalog", "a=b"], "--catalog is for an Iceberg table"),
        (["archive", "t", "--to", "file:///x", "--warehouse", "w"], "--warehouse is for an Iceberg table"),
        (
            ["archive", "t", "--iceberg", "n.t", "--warehouse", "w", "--catalog", "a=b"],
            "remove --warehouse or --catalog",
        ),
        (["archive", "t", "--to", "file:///x", "--schema", "a int"], "--schema says how to decode values"),
        (["compact", "t", "--offline", "--http", "http://h:1"], "use only one of them"),
    ],
)
def test_flags_that_would_have_no_effect_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["job", *arguments, "--store", "file:///nowhere"]) == 2
    assert words in capsys.readouterr().err


def test_a_topic_is_described_from_the_store_alone(topic: Topic, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "describe", "t", "--store", topic.store, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["records"], found["segments"], len(found["partitions"])) == (400, 4, 2)
    assert found["records"] == count(topic.store, "t") == len(topic.reference())
    assert found["partitions"][1]["end_offset"] == 200
    assert main(["topic", "describe", "t", "--store", topic.store]) == 0
    assert "400 records in 4 segments" in capsys.readouterr().out
    assert main(["topic", "describe", "nowhere", "--store", topic.store]) == 2
    assert "There is no topic nowhere" in capsys.readouterr().err


async def test_a_replay_that_died_goes_on_without_gap_or_double(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await make_topic(tmp_path / "source", seed=3)
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("again", 2)
        request = ReplayRequest(
            store=topic.store,
            topic="t",
            bootstrap=(("127.0.0.1", broker.port),),
            target="again",
            start=str(NOW_MS + 50),
            state_path=tmp_path / "state.json",
        )

        class Died(Exception):
            pass

        noted = 0
        note = Replay.note

        async def die(self: Replay, producer: Any, state: ReplayState, sent: Any) -> None:
            nonlocal noted
            noted += 1
            await producer.flush()
            if noted == 2:  # After the acknowledgements, before they are written down.
                raise Died
            await note(self, producer, state, sent)

        monkeypatch.setattr("pyspark_firn.jobs.replay.STATE_EVERY_RECORDS", 70)
        monkeypatch.setattr("pyspark_firn.jobs.replay.STATE_EVERY_S", 3600)  # however slow the machine is
        with monkeypatch.context() as patched:
            patched.setattr(Replay, "note", die)
            with pytest.raises(Died):
                await asyncio.to_thread(replay, request)
        summary = await asyncio.to_thread(replay, request)
        assert (summary.resumed_at, summary.records) == (140, 160)
        assert (await asyncio.to_thread(replay, request)).records == 0
        found = [await produced(broker.port, "again", index) for index in (0, 1)]
        for index in (0, 1):
            assert [record.value for record in found[index]] == [b"v%d" % n for n in range(50, 200)]
            headers = dict(found[index][0].headers)
            assert headers["own"] == b"1"
            assert headers["firn.replay.timestamp"] == b"%d" % (NOW_MS + 50)
        with pytest.raises(ConfigError, match="belongs to another replay"):
            await asyncio.to_thread(
                replay, ReplayRequest(**{name: getattr(request, name) for name in request.__slots__} | {"start": "5"})
            )
