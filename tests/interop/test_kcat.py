"""kcat: what a person types."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.interop.serving import COLD_CONFIGS, Served, create_topic, wait_until_cold

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not here"),
]

TIMEOUT_S = 60
MIDDAY = 1_700_000_000_000


def kcat(firn: Served, *arguments: object, given: str | bytes = b"", code: int = 0) -> str:
    """What kcat printed. A quiet end is part of it: nothing on its standard error but its own notices."""
    done = subprocess.run(
        ["kcat", "-b", firn.bootstrap, *map(str, arguments)],
        input=given.encode() if isinstance(given, str) else given,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == code, done
    if code == 0:
        assert b"ERROR" not in done.stderr, done
        assert b"FAIL" not in done.stderr, done
    return done.stdout.decode() if code == 0 else done.stderr.decode()


@pytest.mark.ci
def test_lines_go_in_and_come_out(quiet: Served) -> None:
    create_topic(quiet.port, "lines")
    kcat(quiet, "-P", "-t", "lines", given="one\ntwo\nthree\n")
    assert kcat(quiet, "-C", "-t", "lines", "-e", "-q") == "one\ntwo\nthree\n"
    assert kcat(quiet, "-C", "-t", "lines", "-p", 0, "-o", 1, "-c", 1, "-q") == "two\n"
    assert kcat(quiet, "-C", "-t", "lines", "-o", -1, "-e", "-q") == "three\n"
    assert kcat(quiet, "-C", "-t", "lines", "-o", "end", "-e", "-q") == ""


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_keys_headers_and_codecs_come_back(quiet: Served, codec: str) -> None:
    topic = f"kcat-{codec}"
    create_topic(quiet.port, topic)
    given = "".join(f"k{n}:value {n}\n" for n in range(50))
    kcat(quiet, "-P", "-t", topic, "-K", ":", "-z", codec, "-H", "a=1", "-H", "b=2", given=given)
    out = kcat(quiet, "-C", "-t", topic, "-e", "-q", "-f", "%o %k %s %h\n")
    assert out.splitlines() == [f"{n} k{n} value {n} a=1,b=2" for n in range(50)]


def test_null_and_empty_values_are_told_apart(quiet: Served) -> None:
    create_topic(quiet.port, "nulls")
    kcat(quiet, "-P", "-t", "nulls", "-Z", "-K", ":", given="gone:\nthere:x\n")
    lines = kcat(quiet, "-C", "-t", "nulls", "-e", "-q", "-J").splitlines()
    assert [(json.loads(line)["key"], json.loads(line)["payload"]) for line in lines] == [
        ("gone", None),
        ("there", "x"),
    ]


def test_the_cluster_is_listed(quiet: Served) -> None:
    create_topic(quiet.port, "listed", 3)
    listed = json.loads(kcat(quiet, "-L", "-J"))
    assert listed["brokers"] == [{"id": 1, "name": quiet.bootstrap}]
    (topic,) = (topic for topic in listed["topics"] if topic["topic"] == "listed")
    assert [partition["leader"] for partition in topic["partitions"]] == [1, 1, 1]
    assert 'topic "listed" with 3 partitions' in kcat(quiet, "-L", "-t", "listed")


@pytest.mark.ci
def test_offsets_are_asked_for_by_time_in_both_tiers(quiet: Served) -> None:
    create_topic(quiet.port, "cold", configs=COLD_CONFIGS)
    value = b"x" * 100_000
    for _ in range(30):
        kcat(quiet, "-P", "-t", "cold", "-D", "\n", given=value + b"\n")
    local_start = wait_until_cold(quiet, "cold")
    lines = kcat(quiet, "-C", "-t", "cold", "-o", 0, "-e", "-q", "-f", "%o %T %S\n").splitlines()
    assert len(lines) == 30
    times = {int(line.split()[0]): int(line.split()[1]) for line in lines}
    assert all(line.endswith(" 100000") for line in lines)
    for offset in {0, 1, local_start - 1, local_start, 29}:
        first = min(other for other, stamp in times.items() if stamp >= times[offset])
        assert kcat(quiet, "-Q", "-t", f"cold:0:{times[offset]}") == f"cold [0] offset {first}\n"
    assert kcat(quiet, "-Q", "-t", "cold:0:-1") == "cold [0] offset 30\n"
    assert kcat(quiet, "-Q", "-t", "cold:0:-2") == "cold [0] offset 0\n"
    since = kcat(quiet, "-C", "-t", "cold", "-o", f"s@{times[local_start - 1]}", "-c", 1, "-q", "-f", "%o")
    assert int(since) == min(o for o, stamp in times.items() if stamp >= times[local_start - 1])


def test_a_topic_that_is_not_there_is_said_to_be_so(quiet: Served) -> None:
    told = kcat(quiet, "-C", "-t", "nowhere", "-e", "-X", "allow.auto.create.topics=false", code=1)
    assert "Unknown topic or partition" in told


def test_many_partitions_are_read_to_their_ends(quiet: Served) -> None:
    create_topic(quiet.port, "spread", 12)
    kcat(quiet, "-P", "-t", "spread", "-K", ":", given="".join(f"k{n}:{n}\n" for n in range(600)))
    out = kcat(quiet, "-C", "-t", "spread", "-e", "-q")
    assert sorted(int(line) for line in out.split()) == list(range(600))


def test_an_idempotent_producer_is_served(quiet: Served) -> None:
    create_topic(quiet.port, "once")
    kcat(quiet, "-P", "-t", "once", "-X", "enable.idempotence=true", given="a\nb\n")
    assert kcat(quiet, "-C", "-t", "once", "-e", "-q") == "a\nb\n"
