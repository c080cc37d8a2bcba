"""Whoever changes only the format's name reads the same, or is told: Spark's Kafka source over Apache Kafka, and Firn over a bucket
of the same batches."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from app.records.batch import iter_headers
from loadtests.kafka_peer import kafka_running
from loadtests.spark_read import CONNECTOR
from tests.interop.serving import kafka_libs_or_skip
from tests.spark.programs import run_module
from tests.support.buckets import BucketBuilder

pytestmark = [pytest.mark.interop, pytest.mark.slow]

NOW_MS = 1_700_000_000_000
TIMEOUT_S = 1500
"""Two hundred queries: they took 13 minutes on two cores that had ten times as much to do."""
TOPICS: Mapping[str, tuple[int, Mapping[str, str]]] = {
    "t": (3, {}),
    "t2": (1, {}),
    "stamped": (1, {"message.timestamp.type": "LogAppendTime"}),
    "ledger": (1, {}),
    "empty": (2, {}),
}
SHAPES: list[tuple[bytes | None, bytes | None, Any]] = [
    (None, None, None),
    (b"", b"", []),
    (b"k", None, [("a", None), ("a", b""), ("", b"x"), ("é", b"\xff")]),
    (None, b"value", [("h", b"1")]),
]
ABORTED_BYTES = 34
"""Of an entry of Kafka's index of aborted transactions; two for its version go first."""


def of_t(**offsets: Any) -> str:
    return json.dumps({"t": {name.removeprefix("p"): offset for name, offset in offsets.items()}})


def of_t2(value: Any) -> str:
    return json.dumps({"t2": {"0": value}})


def at(ms: int) -> str:
    return str(NOW_MS + ms)


SAME: list[tuple[str, dict[str, str]]] = [
    ("batch", {"subscribe": "t"}),
    ("batch", {"subscribe": "t", "includeHeaders": "true"}),
    ("batch", {"SUBSCRIBE": "t, t2,,t", "includeheaders": "TRUE"}),
    ("batch", {"subscribe": "stamped"}),
    ("batch", {"subscribe": "ledger"}),
    ("batch", {"subscribe": "empty"}),
    *[("batch", {"subscribePattern": pattern}) for pattern in ("t", "^t", "^t$", "t2|stamped", "(?i)TAM", ".*")],
    ("batch", {"assign": '{"t": [0, 0, 2], "t2": [0]}'}),
    ("batch", {"subscribe": "t", "startingOffsets": " EARLIEST ", "endingOffsets": " Latest "}),
    ("batch", {"subscribe": "t", "startingOffsets": of_t(p0=5, p1=-2, p2=0), "endingOffsets": of_t(p0=9, p1=-1, p2=0)}),
    ("batch", {"subscribe": "t", "startingOffsets": of_t(p00=40, p1=20, p2=0)}),
    ("batch", {"subscribe": "t2", "startingOffsets": '{"t2": {"0": 5, "0": 7}}'}),
    ("batch", {"subscribe": "t2", "startingTimestamp": at(4), "endingTimestamp": at(8)}),
    ("batch", {"subscribe": "t2", "startingTimestamp": "0", "endingTimestamp": at(10**9)}),
    ("batch", {"subscribe": "t2", "startingTimestamp": at(6), "endingTimestamp": at(6)}),
    ("batch", {"subscribe": "t2", "startingOffsetsByTimestamp": of_t2(NOW_MS + 3)}),
    ("batch", {"subscribe": "t2", "endingOffsetsByTimestamp": of_t2(NOW_MS + 3)}),
    # A time for all goes before times by partition, and those before offsets.
    (
        "batch",
        {
            "subscribe": "t2",
            "startingTimestamp": at(6),
            "startingOffsetsByTimestamp": of_t2(NOW_MS + 2),
            "startingOffsets": of_t2(1),
        },
    ),
    ("batch", {"subscribe": "t2", "startingOffsetsByTimestamp": of_t2(NOW_MS + 2), "startingOffsets": of_t2(1)}),
    # Later records of partition 1 are older.
    (
        "batch",
        {
            "subscribe": "t",
            "startingTimestamp": at(5000),
            "endingTimestamp": at(15000),
            "startingOffsetsByTimestampStrategy": "LATEST",
        },
    ),
    ("batch", {"subscribe": "stamped", "startingTimestamp": "1", "endingTimestamp": at(0)}),
    ("batch", {"subscribe": "ledger", "startingTimestamp": at(1), "endingTimestamp": at(4)}),
    ("batch", {"subscribe": "empty", "endingTimestamp": at(0)}),
    ("stream", {"subscribe": "t,ledger", "startingOffsets": "earliest", "includeHeaders": "true"}),
    ("stream", {"subscribe": "t", "startingOffsets": "latest"}),
    ("stream", {"subscribe": "t", "startingOffsets": of_t(p0=5, p1=-1, p2=-2)}),
    ("stream", {"subscribePattern": "t", "startingTimestamp": at(0), "startingOffsetsByTimestampStrategy": "latest"}),
]
REFUSED_BY_BOTH: list[tuple[str, dict[str, str]]] = [
    ("batch", {}),
    ("batch", {"subscribe": " , "}),
    ("batch", {"subscribe": "t", "assign": '{"t": [0]}'}),
    ("batch", {"subscribe": "t,nowhere"}),
    ("batch", {"subscribePattern": "("}),
    *[("batch", {"assign": text}) for text in ("t", '{"t": 0}', '{"t": ["0"]}', '{"nowhere": [0]}')],
    *[
        ("batch", {"subscribe": "t", "startingOffsets": text})
        for text in ("latest", "", "5", "[]", "{}", '{"t": []}', of_t(p0=5), of_t(p0=5, p1=0, p2=0, p3=0))
    ],
    *[
        ("batch", {"subscribe": "t", "startingOffsets": of_t(p0=offset, p1=0, p2=0)})
        for offset in (-1, -3, 41, 10**19, "5", True)
    ],
    *[("batch", {"subscribe": "t", "endingOffsets": text}) for text in ("earliest", "5", of_t(p0=5))],
    *[("batch", {"subscribe": "t", "endingOffsets": of_t(p0=offset, p1=0, p2=0)}) for offset in (-2, -3, 41)],
    ("batch", {"subscribe": "t", "startingOffsets": of_t(p0=9, p1=0, p2=0), "endingOffsets": of_t(p0=5, p1=5, p2=0)}),
    ("batch", {"subscribe": "t2", "startingTimestamp": at(6), "endingTimestamp": at(3)}),
    *[("batch", {"subscribe": "t2", "startingTimestamp": text}) for text in ("", "1e12", "2013-07-01", at(10**9))],
    ("batch", {"subscribe": "empty", "startingTimestamp": at(0)}),
    ("batch", {"subscribe": "t2", "startingOffsetsByTimestamp": at(0)}),
    ("batch", {"subscribe": "t2", "startingTimestamp": at(10**9), "startingOffsetsByTimestampStrategy": "none"}),
    ("batch", {"subscribe": "t", "failOnDataLoss": "no"}),
    ("batch", {"subscribe": "t", "includeHeaders": "1"}),
    ("stream", {"subscribe": "t", "endingOffsets": "latest"}),
    ("stream", {"subscribe": "t", "startingOffsets": of_t(p0=5)}),
    ("stream", {"subscribe": "t", "startingOffsets": of_t(p0=41, p1=0, p2=0)}),
    ("stream", {"subscribe": "t", "startingTimestamp": at(10**9)}),
]
REFUSED_BY_FIRN: list[tuple[str, dict[str, str]]] = [
    ("batch", {"subscribePattern": "nowhere"}),
    *[("batch", {"assign": text}) for text in ("{}", '{"t": []}', '{"t": [9]}')],
    ("batch", {"subscribe": "t2", "startingTimestamp": "-1"}),
    *[
        ("batch", {"subscribe": "t2", name: "4"})
        for name in ("minPartitions", "maxRecordsPerPartition", "groupIdPrefix", "kafka.max.poll.records")
    ],
    *[("stream", {"subscribe": "t", name: "4"}) for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger")],
]
"""What docs/spark.md says of it."""
CASES = [*SAME, *REFUSED_BY_BOTH, *REFUSED_BY_FIRN]


def fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for name, (partitions, config) in TOPICS.items():
        # The records are of a day long ago, which Kafka's defaults would have deleted.
        made = admin.create_topics([NewTopic(name, partitions, 1, config={"retention.ms": "-1", **config})])
        made[name].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for n in range(40):
        key, value, headers = SHAPES[n % len(SHAPES)]
        producer.produce("t", value, key, partition=0, headers=headers, timestamp=NOW_MS + n * 1000)
        if n % 10 == 9:
            producer.flush()
    for n in range(20):
        producer.produce("t", b"w%d" % n, b"k", partition=1, timestamp=NOW_MS + (20 - n) * 1000)
        producer.flush()
    for n in range(10):
        producer.produce("stamped", b"s%d" % n, timestamp=1)
        producer.produce("t2", b"u%d" % n, timestamp=NOW_MS + n)
    producer.flush()
    ledger = Producer({"bootstrap.servers": bootstrap, "transactional.id": "ledger"})
    ledger.init_transactions(30)
    for n in range(6):
        ledger.begin_transaction()
        for m in range(3):
            ledger.produce("ledger", b"%d-%d" % (n, m), timestamp=NOW_MS + n)
        ledger.flush()
        if n % 2:
            ledger.abort_transaction()
        else:
            ledger.commit_transaction()


async def mirror(logs: Path, bucket_path: Path) -> None:
    """A bucket of the batches in Kafka's own files."""
    bucket = await BucketBuilder.open(bucket_path)
    for name, (partitions, _) in TOPICS.items():
        topic_id = await bucket.create_topic(name, partitions)
        for index in range(partitions):
            folder = logs / f"{name}-{index}"
            aborted = [
                struct.unpack_from(">qqqq", data, at + 2)
                for data in (path.read_bytes() for path in folder.glob("*.txnindex"))
                for at in range(0, len(data), ABORTED_BYTES)
            ]
            for path in sorted(folder.glob("*.log")):
                if data := path.read_bytes():
                    headers = [header for _, header in iter_headers(data)]
                    base, end = headers[0].base_offset, headers[-1].end_offset
                    overlapping = [one for one in aborted if one[1] < end and one[2] >= base]
                    await bucket.add_segment(topic_id, index, [data], chunk_bytes=300, aborted=overlapping)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    kafka_libs_or_skip()
    if not (CONNECTOR / "unsecured.jar").exists():
        pytest.skip("Spark's Kafka connector is not here: make spark-connector brings it")
    path = tmp_path_factory.mktemp("sources")
    with kafka_running(path / "kafka") as kafka:
        fill(kafka.bootstrap)
        asyncio.run(mirror(path / "kafka" / "logs", path / "bucket"))
        (path / "cases").write_text(json.dumps(CASES))
        files = [str(path / "cases"), str(path / "answers")]
        done = run_module(
            "tests.spark.both_sources", (path / "bucket").as_uri(), kafka.bootstrap, *files, timeout_s=TIMEOUT_S
        )
    assert done.returncode == 0, done.stdout[-4000:]
    found: list[dict[str, Any]] = json.loads((path / "answers").read_text())
    assert len(found) == len(CASES)
    return found


def found_for(answers: list[dict[str, Any]], case: tuple[str, dict[str, str]]) -> tuple[Any, Any]:
    found = answers[CASES.index(case)]
    return found["kafka"], found["firn"]


@pytest.mark.parametrize("case", SAME, ids=str)
def test_both_sources_read_the_same(answers: list[dict[str, Any]], case: tuple[str, dict[str, str]]) -> None:
    kafka, firn = found_for(answers, case)
    assert isinstance(kafka, list)
    assert firn == kafka


@pytest.mark.parametrize("case", REFUSED_BY_BOTH, ids=str)
def test_what_sparks_kafka_source_refuses_is_refused_in_a_sentence(
    answers: list[dict[str, Any]], case: tuple[str, dict[str, str]]
) -> None:
    kafka, firn = found_for(answers, case)
    assert isinstance(kafka, str)
    assert isinstance(firn, str)
    assert firn.endswith(".")


@pytest.mark.parametrize("case", REFUSED_BY_FIRN, ids=str)
def test_what_only_firn_refuses_it_refuses_in_a_sentence(
    answers: list[dict[str, Any]], case: tuple[str, dict[str, str]]
) -> None:
    kafka, firn = found_for(answers, case)
    assert isinstance(kafka, list)
    assert isinstance(firn, str)
    assert firn.endswith(".")
