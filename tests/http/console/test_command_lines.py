from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from app.cli.session import parse_moment
from app.core.units import Offset, TimestampMs
from app.http.console.texts.command_lines import (
    PRODUCED_BYTES_MAX,
    PRODUCED_HEADERS_MAX,
    Reach,
    producing,
    reaching,
    reading,
    reset_line,
)
from app.records.record import Record

EVIL = "x'; touch taken; echo \"$(id)`id`\\"


def words(command: str) -> list[str]:
    """The words that a shell makes of a line."""
    shown = subprocess.run(["sh", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True, text=True)
    return shown.stdout.split("\0")[:-1]


def test_lines_read_one_message() -> None:
    firn, kcat, curl = reading("t", 3, 7, base="http://h:1/", cluster_id="c", reach=Reach("b", 9092), user="")
    assert firn.command == "firn consume t --partition 3 --from 7 --count 1"
    assert kcat.command == "kcat -b b:9092 -C -t t -p 3 -o 7 -c 1"
    assert words(curl.command) == [
        "curl",
        "-s",
        "http://h:1/v3/clusters/c/topics/t/partitions/3/records?offset=7&count=1",
    ]


DEFAULT, OTHER, SECURED = Reach("localhost", 9092), Reach("::1", 9092), Reach("b", 1, secured=True)


@pytest.mark.parametrize(
    ("command", "reach", "expected"),
    [
        ("firn topic ls", DEFAULT, "firn topic ls"),
        ("firn topic ls", Reach(), "firn topic ls"),
        ("firn topic ls", OTHER, "firn topic ls -b '[::1]:9092'"),
        (
            "echo hello | firn produce t",
            SECURED,
            "echo hello | firn --client-config client.properties produce t -b b:1",
        ),
        ("firn topic ls", Reach(EVIL, 1), f"firn topic ls -b {shlex.quote(EVIL + ':1')}"),
        ("firn topic ls", Reach("a\u202eb", 1), "firn topic ls"),
        ("firn verify", OTHER, "firn verify"),
        ("GET /v1/cost", SECURED, "GET /v1/cost"),
        ("kafka-x.sh --bootstrap-server HOST:PORT list", DEFAULT, "kafka-x.sh --bootstrap-server localhost:9092 list"),
        ("kafka-x.sh --bootstrap-server HOST:PORT list", Reach(), "kafka-x.sh --bootstrap-server HOST:PORT list"),
        (
            "kafka-x.sh --bootstrap-server HOST:PORT list",
            SECURED,
            "kafka-x.sh --bootstrap-server b:1 --command-config client.properties list",
        ),
    ],
)
def test_a_line_names_a_broker_that_is_elsewhere_and_the_file_with_the_login(
    command: str, reach: Reach, expected: str
) -> None:
    assert reaching(command, reach) == expected


def test_kcat_gets_a_file_of_its_own_because_it_does_not_know_the_names_of_kafkas_tools() -> None:
    _, kcat, _ = reading("t", 0, 0, base="http://h/", cluster_id="c", reach=SECURED, user="ann")
    assert words(kcat.command)[:5] == ["kcat", "-F", "kcat.conf", "-b", "b:1"]


@pytest.mark.parametrize("name", [EVIL, "a b", "*", "&", "#"])
def test_each_name_stays_one_word_of_a_shell(name: str) -> None:
    firn, kcat, curl = reading(name, 0, 0, base="http://h/", cluster_id=name, reach=Reach(name, 1), user=name)
    assert words(firn.command)[2] == name
    assert words(kcat.command)[2] == f"{name}:1"
    assert name in words(kcat.command)
    assert words(curl.command)[3] == name
    assert len(words(curl.command)) == 5


def test_a_name_that_is_an_option_or_shows_nothing_has_no_line() -> None:
    for name in ("-x", "a\u202eb", "a\nb"):
        assert [
            one.command for one in reading(name, 0, 0, base="http://h/", cluster_id="c", reach=Reach("b", 1), user="")
        ][:2] == ["", ""], name


def test_a_line_produces_the_same_message() -> None:
    record = Record(Offset(1), TimestampMs(5), EVIL.encode(), b"\x00\xff\xe2", (("h", b"\x01"), (EVIL, None)))
    line = producing("t", 2, record, base="http://h/", cluster_id="c", user="ann")
    found = words(line.command)
    assert found[:4] == ["curl", "-s", "-u", "ann"]
    assert found[-1] == "http://h/v3/clusters/c/topics/t/records"
    body = json.loads(found[found.index("--data") + 1])
    assert body == {
        "partition_id": 2,
        "key": {"type": "STRING", "data": EVIL},
        "value": {"type": "BINARY", "data": "AP/i"},
        "headers": [{"name": "h", "value": "AQ=="}, {"name": EVIL, "value": None}],
        "timestamp": 5,
    }


def test_hidden_characters_of_a_message_show_in_its_line() -> None:
    record = Record(Offset(1), TimestampMs(-1), None, "a\u202eb\n".encode())
    line = producing("t", 0, record, base="http://h/", cluster_id="c", user="").command
    assert "\\u202e" in line
    assert line.isprintable()


@pytest.mark.parametrize(
    ("value", "headers"),
    [
        (b"a" * (PRODUCED_BYTES_MAX + 1), ()),
        (b"", (("h", b"a" * PRODUCED_BYTES_MAX),)),
        (b"", (("n" * (PRODUCED_BYTES_MAX + 1), None),)),
        (b"", (("h", None),) * (PRODUCED_HEADERS_MAX + 1)),
    ],
)
def test_a_long_message_has_no_line(value: bytes, headers: tuple[tuple[str, bytes | None], ...]) -> None:
    record = Record(Offset(1), TimestampMs(5), None, value, headers)
    assert producing("t", 2, record, base="http://h/", cluster_id="c", user="").command == ""


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({}, "firn group reset team --all-topics --to earliest"),
        ({"to": "latest", "at": "5"}, "firn group reset team --all-topics --to latest"),
        ({"topic": "t", "to": "offset", "at": "5"}, "firn group reset team --topic t --to 5"),
        ({"topic": "t", "partition": "3", "to": "earliest"}, "firn group reset team --topic t:3 --to earliest"),
        ({"to": "time", "at": "2024-05-06"}, "firn group reset team --all-topics --to 2024-05-06"),
        ({"to": "time", "at": "2024-05-06T07:08"}, "firn group reset team --all-topics --to 2024-05-06T07:08Z"),
        ({"to": "time", "at": "2024-05-06T07:08Z"}, "firn group reset team --all-topics --to 2024-05-06T07:08Z"),
        (
            {"to": "time", "at": "2024-05-06T07:08+02:00"},
            "firn group reset team --all-topics --to 2024-05-06T07:08+02:00",
        ),
        ({"topic": "t", "to": "offset", "at": "--execute"}, ""),
    ],
)
def test_the_line_of_a_reset_is_that_of_its_form(asked: dict[str, str], line: str) -> None:
    given = dict.fromkeys(("topic", "partition", "to", "at"), "") | asked
    assert reset_line("team", **given) == line
    where = line.rpartition(" ")[2]
    if where[:4] == "2024":
        parse_moment(where, "--to", 0)
