"""The commands against a running broker, as a user or a script calls them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from app.broker.start.running import note_running
from app.cli import main
from app.cli.session import local_path
from app.core.errors import ConfigError
from app.core.units import PartitionIndex, SegmentId, TimestampMs, TopicId
from app.machine.files import PosixFileSystem, claim_directory
from app.metadata.log import layout
from app.records.batch import HEADER_BYTES, rewrite_header
from app.records.builder import build_batch
from app.settings import load
from tests.support.broker import RunningBroker, running_broker
from tests.support.commands import Firn, runner

NOW_MS = TimestampMs(1_700_000_000_000)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path) as running:
        yield running


@pytest.fixture
def firn(broker: RunningBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Firn:
    return runner(capfd, monkeypatch, broker.bootstrap)


async def test_lines_go_in_and_come_out(firn: Firn, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"k{number % 3}\tv{number}\n" for number in range(1_000)) + "k9\tlast without an end")
    await firn("topic", "create", "t", "-p", "2")
    done = await firn("produce", "t", str(lines), "-k", "\\t", "-H", "h=1", "-z", "lz4", "--timestamp", "2013-07-01")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("1,001 records, ")
    back = await firn("consume", "t", "--format", "{key}\\t{value}")
    assert sorted(back.out.splitlines()) == sorted(lines.read_text().splitlines())
    one = await firn("consume", "t", "-n", "1", "--format", "{topic} {headers} {time} {timestamp} {key_bytes} {{}}")
    assert one.out == "t h=1 2013-07-01 00:00:00.000Z 1372636800000 2 {}\n"


async def test_produce_tells_programs_what_it_did(firn: Firn, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\nb\nc\n")
    done = await firn("produce", "t", str(tmp_path / "lines"), "--json", "-p", "0")
    answer = done.json
    answer.pop("seconds")
    assert answer == {
        "topic": "t",
        "records": 3,
        "failed": 0,
        "bytes": 6,
        "partitions": [{"partition": 0, "first_offset": 0, "end_offset": 3}],
    }


@pytest.mark.ci
async def test_produce_tells_the_brokers_reason_before_it_gives_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lines").write_text("a\n")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr("app.cli.session.RETRY_BUDGET_MS", 2000)
    monkeypatch.setattr("app.client.retry.BACKOFF_MAX_MS", 50)
    async with running_broker(tmp_path, auto_create_topics_enable=False) as broker:
        code = await asyncio.to_thread(main, ["produce", "nope", str(tmp_path / "lines"), "-b", broker.bootstrap])
    said = capfd.readouterr().err
    assert code == 1
    assert said.count("Not acknowledged yet, trying again: ") == 1
    assert said.index("trying again") < said.rindex("nope")


async def test_a_line_without_its_key_ends_produce_after_the_lines_before_it(firn: Firn, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a:1\nb:2\nbroken\nc:3\n")
    done = await firn("produce", "t", str(tmp_path / "lines"), "-k", ":")
    assert (done.code, "Line 3 has no key separator ':'" in done.err) == (2, True)
    assert (await firn("consume", "t")).out == "1\n2\n"


async def test_consume_begins_and_stops_where_it_is_told(firn: Firn, tmp_path: Path) -> None:
    for day in range(1, 4):
        (tmp_path / "lines").write_text("".join(f"{day}.{number}\n" for number in range(3)))
        await firn("produce", "t", str(tmp_path / "lines"), "--timestamp", f"2013-07-0{day}")

    async def read(*arguments: str) -> list[str]:
        done = await firn("consume", "t", *arguments)
        assert done.code == 0, done.err
        return done.out.split()

    everything = [f"{day}.{number}" for day in range(1, 4) for number in range(3)]
    assert await read() == everything
    assert await read("--from", "end") == []
    assert await read("--from", "7") == everything[7:]
    assert await read("--from", "last:2") == everything[7:]
    assert await read("--until", "2") == everything[:2]
    assert await read("--from", "2013-07-02", "--until", "2013-07-03T00:00:00Z") == everything[3:6]
    assert await read("--from", "@1372723200000") == everything[3:]
    assert await read("--count", "4") == everything[:4]
    assert await read("--follow", "--count", "9") == everything
    assert await read("--count", "0") == []
    past = await firn("consume", "t", "--from", "50")
    assert (past.out, "t-0 ends at offset 9" in past.err) == ("", True)


@pytest.mark.parametrize(
    ("arguments", "far"), [((), "9/9"), (("--until", "6"), "6/6"), (("-n", "4"), "4/4"), (("-f", "-n", "5"), "5/5")]
)
async def test_consume_shows_how_far_it_is_where_its_output_goes_elsewhere(
    firn: Firn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], far: str
) -> None:
    (tmp_path / "lines").write_text("value\n" * 9)
    await firn("produce", "t", str(tmp_path / "lines"))
    assert far not in (await firn("consume", "t", *arguments)).err
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    done = await firn("consume", "t", *arguments)
    assert done.out == "value\n" * int(far[0])
    assert far in done.err
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert (await firn("consume", "t", *arguments)).err == ""


async def test_consume_as_json_is_a_line_per_record_and_keeps_bytes(firn: Firn, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"k:v\xff\nk:\n")
    await firn("produce", "t", str(tmp_path / "lines"), "-k", ":", "--timestamp", "@5", "--empty-is-null")
    first, second = map(json.loads, (await firn("consume", "t", "--json")).out.splitlines())
    assert first == {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp": 5,
        "key": "k",
        "value": {"base64": "dv8="},
        "headers": [],
    }
    assert second["value"] is None


async def test_topics_are_made_shown_changed_and_removed(firn: Firn, tmp_path: Path) -> None:
    made = await firn("topic", "create", "t", "-p", "2", "-s", "retention.ms=7000", "--json")
    assert made.json == {"topic": "t", "created": True, "partitions_count": 2, "replication_factor": 1}
    assert (await firn("topic", "create", "t")).code == 1
    again = await firn("topic", "create", "t", "--if-not-exists", "--json")
    assert (again.code, again.json["created"]) == (0, False)
    (tmp_path / "lines").write_text("x\n" * 10)
    await firn("produce", "t", str(tmp_path / "lines"), "-p", "1")
    (listed,) = (await firn("topic", "list", "--json")).json
    assert (listed["topic"], listed["partitions_count"], listed["records"]) == ("t", 2, 10)
    described = (await firn("topic", "describe", "t", "--json")).json
    assert [partition["records"] for partition in described["partitions"]] == [0, 10]
    assert described["configs"] == {
        "retention.ms": {"value": "7000", "source": "DYNAMIC_TOPIC_CONFIG", "default": False}
    }
    table = (await firn("topic", "describe", "t")).out
    assert "10 records: " in table
    titles, row = table.splitlines()[1:3]
    assert titles.split()[:5] == ["PARTITION", "LEADER", "REPLICAS", "IN", "SYNC"]
    assert row.split()[:4] == ["0", "1", "1", "1"]
    assert "retention.ms   7000    this topic" in table
    assert (await firn("topic", "alter", "t", "-s", "segment.ms=60000", "-u", "retention.ms")).code == 0
    configs = (await firn("topic", "describe", "t", "--json")).json["configs"]
    assert list(configs) == ["segment.ms"]
    assert (await firn("topic", "add-partitions", "t", "-t", "5")).err == "Topic t has 5 partitions now.\n"
    unasked = await firn("topic", "delete", "t")
    assert (unasked.code, "add --yes" in unasked.err) == (2, True)
    assert (await firn("topic", "list", "--json")).json != []
    missing = await firn("topic", "delete", "nowhere", "--if-exists", "--json")
    assert (missing.code, missing.json) == (0, {"topic": "nowhere", "deleted": False})
    assert (await firn("topic", "delete", "t", "-y", "--json")).json == {"topic": "t", "deleted": True}
    assert (await firn("topic", "list")).err == "There are no topics yet. `firn topic create NAME` makes one.\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("topic create bad/name", 2, "not valid"),
        ("topic create t -s segment.byte=1", 2, "Did you mean segment.bytes?"),
        ("topic create t -s segment.bytes=x", 2, "segment.bytes"),
        ("topic create t --replication-factor 3", 2, "replicat"),
        ("topic describe nowhere", 1, "There is no topic nowhere."),
        ("topic delete nowhere -y", 1, "no topic"),
        ("topic delete nowhere", 1, "no topic"),
        ("topic alter nowhere", 2, "There is nothing to change"),
        ("topic add-partitions nowhere -t 3", 1, "nowhere"),
        ("consume nowhere", 1, "There is no topic nowhere."),
        ("consume t --from yesterday", 1, "There is no topic t."),
        ("consume nowhere --format {x}", 2, "none of topic, partition, offset"),
        ("consume nowhere --follow --until 3", 2, "use only one of them"),
        ("produce t /nowhere/at/all", 1, "/nowhere/at/all: no such file or directory."),
        ("produce t -H x", 2, "--header 'x' is not of the form name=value"),
        ("tier status nowhere", 1, "There is no topic nowhere."),
        ("tier segments nowhere", 1, "There is no topic nowhere."),
        ("topic list -b :::", 2, "--bootstrap ':::' is not an address"),
        ("topic list -b ,", 2, "names no broker"),
        ("topic list -b 127.0.0.1:1", 1, "Start one with `firn serve`, or name another with --bootstrap."),
        ("http --listen nowhere", 2, "--listen 'nowhere' names no port"),
    ],
)
async def test_what_goes_wrong_is_one_sentence(firn: Firn, arguments: str, code: int, words: str) -> None:
    done = await firn(*arguments.split())
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert done.err.startswith("firn: ")
    assert "Traceback" not in done.err


async def test_tiers_are_shown_for_people_and_for_programs(firn: Firn, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("x\n" * 10)
    await firn("produce", "t", str(tmp_path / "lines"))
    (status,) = (await firn("tier", "status", "--json")).json
    assert (status["topic"], status["partition"], status["high_watermark"]) == ("t", 0, 10)
    assert (await firn("tier", "status", "t")).out.startswith("PARTITION ")
    (segment,) = (await firn("tier", "segments", "t", "--json")).json
    assert (segment["partition"], segment["tier"], segment["base_offset"], segment["end_offset"]) == (0, "local", 0, 10)
    assert 0 < segment["min_timestamp"] <= segment["max_timestamp"]
    assert segment["lag_ms"] == -1, "it is not rolled"
    heads, *lines = (await firn("tier", "segments", "t", "-p", "0")).out.splitlines()
    assert all(head in heads for head in ("OLDEST RECORD", "NEWEST RECORD", "LAG"))
    assert any("local" in line for line in lines)
    assert "no partition 3" in (await firn("tier", "segments", "t", "-p", "3")).err


async def test_what_the_loss_of_the_disk_would_take_is_shown(firn: Firn, broker: RunningBroker, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("x\n" * 10)
    await broker.create_topic("t")
    await broker.create_topic("local", cleanup_policy="compact")
    await firn("produce", "t", str(tmp_path / "lines"))
    described = (await firn("topic", "describe", "t", "--json")).json
    (partition,) = described["partitions"]
    assert partition["tiered"]
    assert described["tier_lag_bytes"] == partition["tier_lag_bytes"] == partition["local_bytes"] > 0
    (partition,) = (await firn("topic", "describe", "local", "--json")).json["partitions"]
    assert not partition["tiered"]
    heads, row = (await firn("topic", "describe", "local")).out.splitlines()[1:3]
    assert heads.endswith("NOT TIERED YET")
    assert row.endswith("never is")


async def test_verify_proves_a_store_and_finds_damage(firn: Firn, broker: RunningBroker, tmp_path: Path) -> None:
    await broker.create_topic("t", 1, retention_ms="-1")
    (tmp_path / "lines").write_text("some text\n" * 5_000)
    await firn("produce", "t", str(tmp_path / "lines"), "--timestamp", "2013-07-01")
    broker.log("t").roll()
    store = (tmp_path / "store").as_uri()
    broker.node.remote_log_manager.kick()
    while (await firn("topic", "describe", "t", "--json")).json["partitions"][0].get("tiered_end_offset", 0) < 5_000:
        await asyncio.sleep(0.01)
    (segment,) = (tmp_path / "store" / "data").rglob("*.seg")
    sound = await firn("verify", "--store", store, "--json")
    assert (sound.code, sound.json["sound"], sound.json["records"], sound.json["segments"]) == (0, True, 5_000, 1)
    assert "Every checksum is right" in (await firn("verify", "--store", store)).out
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.chmod(0o600)
    segment.write_bytes(data)
    damaged = await firn("verify", "--store", store)
    assert damaged.code == 1
    assert "DAMAGE  t-0: object damaged" in damaged.out
    assert "Damage in 1 place." in damaged.out


async def test_verify_names_a_topic_whose_manifest_is_gone(firn: Firn, broker: RunningBroker, tmp_path: Path) -> None:
    await broker.create_topic("t", 1)
    topic = (await firn("topic", "describe", "t", "--json")).json["topic_id"]
    orphan = (
        tmp_path
        / "store"
        / layout.segment_key(TopicId(uuid.UUID(topic)), PartitionIndex(0), 0, SegmentId(uuid.UUID(int=1)))
    )
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"history")
    store = (tmp_path / "store").as_uri()
    lost = await firn("verify", "--store", store)
    assert lost.code == 1
    assert "DAMAGE  t-0: manifest missing: " in lost.out
    assert "restore the objects under" in lost.out
    assert "Every checksum is right" not in lost.out
    told = await firn("verify", "--store", store, "--json")
    assert (told.code, told.json["sound"], told.json["segments"]) == (1, False, 0)


async def test_verify_and_doctor_refuse_what_is_no_store(firn: Firn, tmp_path: Path) -> None:
    assert (await firn("verify", "--store", "file:///nowhere")).code == 2
    assert (await firn("verify", "--store", tmp_path.as_uri())).code == 2
    assert not Path("/nowhere").exists()
    assert (await firn("doctor", "--store", "ftp://x")).code == 2


async def test_the_doctor_checks_machine_disk_and_store_and_leaves_nothing(firn: Firn, tmp_path: Path) -> None:
    store = tmp_path / "bucket"
    done = await firn("doctor", "--data-dir", str(tmp_path / "new" / "data"), "--store", store.as_uri(), "--json")
    checks = {check["name"]: check for check in done.json["checks"]}
    assert checks["data directory"]["passed"]
    assert checks["store: conditional write"]["passed"]
    assert not list(tmp_path.rglob(".firn-doctor*"))
    assert not [path for path in store.rglob("*") if path.is_file()]
    assert not (tmp_path / "new").exists()
    assert not store.exists()
    text = await firn("doctor", "--data-dir", str(tmp_path), "--store", store.as_uri())
    assert "ok    store: conditional write" in text.out


async def test_the_doctor_says_who_has_the_data_directory(firn: Firn, tmp_path: Path) -> None:
    store = ("--store", (tmp_path / "bucket").as_uri(), "--listen", "127.0.0.1:0", "--http", "off")
    (tmp_path / "mine").mkdir()
    note_running(str(tmp_path / "mine"), kafka="127.0.0.1:9092", http="off")
    mine = await firn("doctor", "--data-dir", str(tmp_path / "mine"), *store)
    assert f"{tmp_path}/mine is in use by the running broker, process {os.getpid()}\n" in mine.out
    assert mine.out.endswith(f"A broker runs here: process {os.getpid()}.\n")
    with closing(claim_directory(PosixFileSystem(), str(tmp_path / "locked"))):
        locked = await firn("doctor", "--data-dir", str(tmp_path / "locked"), *store)
        assert locked.code == 1
        assert f"{tmp_path}/locked is in use by a process that this command cannot see" in locked.out
    free = await firn("doctor", "--data-dir", str(tmp_path / "locked"), *store)
    assert f"{tmp_path}/locked is free" in free.out


async def test_the_doctor_says_whether_the_broker_takes_writes(
    firn: Firn, broker: RunningBroker, tmp_path: Path
) -> None:
    store = ("--store", (tmp_path / "bucket").as_uri(), "--listen", "127.0.0.1:0", "--http", "off")
    (tmp_path / "mine").mkdir()
    note_running(str(tmp_path / "mine"), kafka="not.reachable.invalid:1", http="off", local=broker.bootstrap)
    done = await firn("doctor", "--data-dir", str(tmp_path / "mine"), *store)
    assert f"process {os.getpid()} accepts writes; on its disk only: 0 B of 0 partitions" in done.out
    broker.node.context.drain.begin()
    done = await firn("doctor", "--data-dir", str(tmp_path / "mine"), *store)
    assert f"process {os.getpid()} has drained and stops" in done.out
    note_running(str(tmp_path / "mine"), kafka="127.0.0.1:1", http="off", local="127.0.0.1:1")
    silent = await firn("doctor", "--data-dir", str(tmp_path / "mine"), *store)
    assert silent.code == 1
    assert "127.0.0.1:1 cannot be reached" in silent.out


async def test_topics_of_brokers_are_shown_only_if_they_are_asked_for(firn: Firn, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("1\n")
    await firn("produce", "t", str(tmp_path / "lines"))
    await firn("group", "describe", "g")  # asks for a coordinator, so `__consumer_offsets` is made
    for command in (("topic", "list"), ("tier", "status")):
        assert {entry["topic"] for entry in (await firn(*command, "--json")).json} == {"t"}
        assert "__consumer_offsets" not in (await firn(*command)).out
        assert {entry["topic"] for entry in (await firn(*command, "--internal", "--json")).json} == {
            "t",
            "__consumer_offsets",
        }
        assert "__consumer_offsets" in (await firn(*command, "--internal")).out
    named = (await firn("tier", "status", "__consumer_offsets", "--json")).json
    assert {entry["topic"] for entry in named} == {"__consumer_offsets"}


async def test_the_doctor_tries_the_ports(firn: Firn, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        where = ("--data-dir", str(tmp_path / "new"), "--store", (tmp_path / "bucket").as_uri(), "--json")
        for flag, other, name in (("--listen", "--http", "port: Kafka"), ("--http", "--listen", "port: HTTP")):
            done = await firn("doctor", *where, flag, address, other, "127.0.0.1:0")
            assert done.code == 1
            failed = [check for check in done.json["checks"] if not check["passed"]]
            assert [(check["name"], check["detail"]) for check in failed] == [
                (name, f"cannot listen on {address}: address already in use")
            ]


async def test_words_that_users_of_kafka_type_are_understood(firn: Firn, broker: RunningBroker, tmp_path: Path) -> None:
    """Of Kafka's own tools, and of rpk."""
    assert (await firn("topic", "create", "t", "--config", "retention.ms=7000", "-c", "segment.ms=60000")).code == 0
    assert (
        await firn("topic", "alter", "t", "--add-config", "retention.ms=8000", "--delete-config", "segment.ms")
    ).code == 0
    shown = (await firn("topic", "describe", "t", "--json", "--bootstrap-server", broker.bootstrap)).json["configs"]
    assert (shown["retention.ms"]["value"], "segment.ms" in shown) == ("8000", False)
    (tmp_path / "lines").write_text("1\n2\n")
    await firn("produce", "t", str(tmp_path / "lines"), "--brokers", broker.bootstrap)
    assert (await firn("consume", "t", "--from", "earliest", "--until", "latest")).out == "1\n2\n"
    assert (await firn("consume", "t", "--from", "latest")).out == ""
    assert [topic["topic"] for topic in (await firn("topic", "ls", "--json")).json if topic["topic"][:2] != "__"] == [
        "t"
    ]
    assert (await firn("topic", "rm", "t", "--yes")).code == 0
    assert (await firn("group", "ls")).code == 0
    assert "There is no group g." in (await firn("group", "rm", "g", "--yes")).err


@pytest.mark.ci
async def test_an_archive_of_a_topic_of_which_nothing_is_tiered_says_so(firn: Firn, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("1\n2\n")
    await firn("produce", "t", str(tmp_path / "lines"))
    archive = ("job", "archive", "t", "--store", (tmp_path / "store").as_uri(), "-w", "1")
    for target in (
        ("--to", (tmp_path / "lake").as_uri()),
        ("--iceberg", "lake.t", "--warehouse", str(tmp_path / "house")),
    ):
        done = await firn(*archive, *target)
        assert done.code == 0, done.err
        assert done.err.startswith("Nothing of t is in the object store yet, so there is nothing to archive:")


async def test_a_missing_folder_of_a_store_names_what_named_it(
    firn: Firn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (await firn("verify")).err == (
        f"firn: There is no folder {tmp_path}/firn-data-store, the default object store:"
        " name your store with --store.\n"
    )
    assert "which --store names" in (await firn("verify", "--store", "file:///nowhere")).err
    monkeypatch.setenv("FIRN_STORE", "file:///nowhere")
    assert "which FIRN_STORE names" in (await firn("verify")).err


def test_a_place_on_this_machine_may_be_written_as_a_url_and_no_other_url_becomes_a_folder() -> None:
    assert local_path("lake") == Path("lake")
    assert local_path("file:///lake%20house") == Path("/lake house")
    for wrong in ("s3://bucket/x", "file://lake/house", "https://x/y"):
        with pytest.raises(ConfigError, match="is not a path"):
            local_path(wrong)
    with pytest.raises(ConfigError, match="must be a directory of this machine"):
        load(flags={"--data-dir": "file:///data"})


async def test_operators_find_a_batch_that_nobody_can_read_and_get_past_it(
    firn: Firn, broker: RunningBroker, tmp_path: Path
) -> None:
    await broker.create_topic("t", 1, retention_ms="-1")
    log = broker.log("t")
    for values in ([b"a", b"b"], None, [b"c"]):
        batch = bytearray(build_batch([(NOW_MS, b"k", value, ()) for value in values or [b"x", b"x", b"x"]]))
        if values is None:
            batch[HEADER_BYTES] = 0xFE  # the first record's length
            rewrite_header(batch, 0)
        log.append_as_leader(memoryview(batch), now_ms=NOW_MS)
    log.roll()
    broker.node.remote_log_manager.kick()
    while (await firn("topic", "describe", "t", "--json")).json["partitions"][0].get("tiered_end_offset", 0) < 6:
        await asyncio.sleep(0.01)
    stuck = await firn("consume", "t", "--from", "0", "--count", "6")
    assert stuck.code != 0
    store = (tmp_path / "store").as_uri()
    assert (await firn("verify", "--store", store)).code == 0, "every checksum is right"
    found = await firn("verify", "--store", store, "--records", "--json")
    assert found.code == 1
    [finding] = found.json["findings"]
    assert (finding["kind"], finding["topic"], finding["partition"]) == ("records unreadable", "t", 0)
    assert "no consumer can read offsets [2, 5)" in finding["message"]
    said = (await firn("verify", "--store", store, "--records")).out
    assert "DAMAGE  t-0: records unreadable" in said
    assert (await firn("consume", "t", "--from", "5", "--count", "1")).out == "c\n", "a consumer may go on behind it"

    assert (await firn("topic", "delete-records", "t", "-p", "0", "--before", "5")).code == 2, "it asks, or wants --yes"
    assert (await firn("topic", "delete-records", "t", "-p", "0", "--before", "soon", "--yes")).code == 2
    deleted = await firn("topic", "delete-records", "t", "-p", "0", "--before", "5", "--yes", "--json")
    assert deleted.json == {"topic": "t", "partition": 0, "log_start_offset": 5}
    assert (await firn("consume", "t", "--from", "beginning", "--count", "1")).out == "c\n"
    everything = await firn("topic", "delete-records", "t", "-p", "0", "--before", "latest", "--yes")
    assert everything.err == "t-0 now begins at offset 6.\n"
