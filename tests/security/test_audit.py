"""What the audit log says: lines are lines whatever clients send, and counts and memory are bounded (ADR 0033)."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from app.security.audit import (
    CHANGES_BYTES_MAX,
    CHANGES_PER_LINE_MAX,
    COARSE_PER_CALLER_MAX,
    COUNTED_BYTES_MAX,
    EVENTS_PER_CALLER_MAX,
    RESOURCES_MAX,
    Event,
    EventKind,
    Lines,
    Outcome,
    Tally,
    event,
    line_of,
    lost_line,
    portions,
    time_text,
)
from app.security.noting import TEXT_CHARS_MAX, Resource, short

HOSTILE = st.text(st.characters(), max_size=600)
LONG = "\N{GRINNING FACE}" * 255
"""Twelve bytes for each character."""


def denied(principal: str = "User:a", name: str = "t", host: str = "h", client_id: str | None = None) -> Event:
    return event(
        EventKind.ACCESS,
        Outcome.DENIED,
        principal=principal,
        host=host,
        listener="L",
        request="PRODUCE",
        client_id=client_id,
        resources=[Resource("WRITE", "TOPIC", name)],
    )


@given(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
def test_a_line_is_one_ascii_line_of_json_whatever_clients_send(
    principal: str, client_id: str, name: str, user: str
) -> None:
    what = event(
        EventKind.LOGIN,
        Outcome.FAILED,
        principal=principal,
        client_id=client_id,
        resources=[Resource("READ", "TOPIC", name)],
        user=user,
    )
    line = line_of(what, 1_700_000_000_123, broker_id=1, correlation_id=7)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert all(32 <= byte < 127 for byte in line[:-1])
    assert len(line) < 4 * 13 * TEXT_CHARS_MAX
    found = json.loads(line)
    assert found.get("user", "")[:TEXT_CHARS_MAX] == user[:TEXT_CHARS_MAX]
    assert found["resources"][0]["name"][:TEXT_CHARS_MAX] == name[:TEXT_CHARS_MAX]


def test_a_line_says_when_in_utc() -> None:
    assert time_text(0) == "1970-01-01T00:00:00.000Z"
    assert time_text(1_700_000_000_007) == "2023-11-14T22:13:20.007Z"


def test_what_one_request_is_refused_is_named_up_to_a_number_and_counted_from_there() -> None:
    asked = [Resource("READ", "TOPIC", f"t{number}") for number in range(10_000)]
    what = event(EventKind.ACCESS, Outcome.DENIED, principal="User:a", resources=asked)
    found = json.loads(line_of(what, 0, broker_id=1))
    assert len(found["resources"]) == RESOURCES_MAX
    assert found["more_resources"] == 10_000 - RESOURCES_MAX


def test_the_first_of_identical_events_is_told_at_once_and_the_others_once() -> None:
    tally = Tally(1)
    first = tally.note(denied(), 1000, 5)
    assert first is not None
    assert json.loads(first)["correlation_id"] == 5
    assert [tally.note(denied(), 1000 + step, step) for step in range(1, 4)] == [None] * 3
    (rest,) = map(json.loads, tally.close())
    assert (rest["count"], rest["since"], rest["time"]) == (3, time_text(1001), time_text(1003))
    assert "correlation_id" not in rest
    assert tally.close() == []
    assert tally.note(denied(), 9000) is not None, "a new window tells it again"


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=300))
def test_every_event_is_counted_once_however_many_there_are(steps: list[tuple[int, int]]) -> None:
    tally = Tally(1, events_max=20, events_per_caller_max=6)
    told = 0
    for who, what in steps:
        line = tally.note(denied(f"User:{who}", f"t{what}"), 0)
        told += line is not None
        assert len(tally) <= 20 + 5 + 1
    counted = sum(json.loads(line)["count"] for line in tally.close())
    assert told + counted == len(steps)


def test_a_caller_with_many_different_events_is_named_and_pushes_out_nobody() -> None:
    tally = Tally(1, events_max=100, events_per_caller_max=10, coarse_per_caller_max=3)
    told = [tally.note(denied("User:noisy", f"t{number}"), number) for number in range(1000)]
    assert [line is not None for line in told] == [True] * 10 + [False] * 990
    assert tally.note(denied("User:quiet"), 5) is not None
    *coarse, rest = map(json.loads, tally.close())
    assert [(line["request"], line["resources"][0]["name"], line["count"]) for line in coarse] == [
        ("PRODUCE", f"t{number}", 1) for number in (10, 11, 12)
    ]
    assert (rest["principal"], rest["request"], rest["count"]) == ("User:noisy", "various", 987)


def test_random_client_ids_hide_no_request_and_no_resource() -> None:
    tally = Tally(1, events_max=100, events_per_caller_max=10, coarse_per_caller_max=3)
    for number in range(1000):
        tally.note(denied("User:noisy", "of all", client_id=f"c{number}"), number)
    for number in range(5):
        tally.note(denied("User:noisy", "of one", client_id=f"d{number}"), number)
    lines = [json.loads(line) for line in tally.close()]
    assert [(line["request"], line["client_id"], line["resources"][0]["name"], line["count"]) for line in lines] == [
        ("PRODUCE", "various", "of all", 990),
        ("PRODUCE", "various", "of one", 5),
    ]


def test_one_caller_has_no_more_lines_and_counts_than_the_limits_say() -> None:
    tally = Tally(1)
    told = [tally.note(denied(name=f"t{number}", client_id=f"c{number}"), 0) for number in range(20_000)]
    assert sum(line is not None for line in told) == EVENTS_PER_CALLER_MAX
    assert len(tally) == EVENTS_PER_CALLER_MAX + COARSE_PER_CALLER_MAX + 1
    assert len(tally.close()) == COARSE_PER_CALLER_MAX + 1


def failed(*changes: dict[str, object]) -> Event:
    return event(EventKind.CHANGE, Outcome.FAILED, principal="User:a", request="DELETE_TOPICS", changes=changes)


def test_failed_changes_are_identical_if_they_were_to_change_the_same_things() -> None:
    def one(partition: int) -> dict[str, object]:
        return {"action": "DELETE_RECORDS", "type": "TOPIC", "name": "t", "partition": partition, "error": "NO"}

    tally = Tally(1)
    line = tally.note(failed(one(0), one(1)), 0, changes=(one(0), one(1)))
    assert line is not None
    assert json.loads(line)["changes"] == [one(0), one(1)], "the first is told with all that is known of it"
    assert tally.note(failed(one(2)), 0, changes=(one(2),)) is None
    assert tally.note(failed(one(2) | {"error": "OTHER"}), 0, changes=(one(2),)) is not None
    (rest,) = map(json.loads, tally.close())
    assert rest["count"] == 1
    assert rest["changes"] == [{"action": "DELETE_RECORDS", "type": "TOPIC", "name": "t", "error": "NO"}]


@example([f"{number}{LONG}" for number in range(20)], 0)
@example([f"{number}{LONG}" for number in range(20)], 2_000)
@given(st.lists(HOSTILE, min_size=1, max_size=40), st.integers(0, 2_000))
def test_a_line_of_changes_that_are_counted_is_short_whatever_they_name(names: list[str], more: int) -> None:
    changes = [{"action": "A", "type": "T", "name": short(name), "configs": "x" * more} for name in names]
    line = Tally(1).note(failed(*changes), 0, changes=changes)
    assert line is not None
    assert len(line) < COUNTED_BYTES_MAX + 1024
    found = json.loads(line)
    different = len({change["name"] for change in changes})
    assert 1 <= len(found["changes"]) <= RESOURCES_MAX
    assert len(found["changes"]) + found.get("more_changes", 0) in (different, len(changes))


def test_callers_that_come_when_all_places_are_taken_are_counted_without_a_name() -> None:
    tally = Tally(1, events_max=10, events_per_caller_max=5)
    for number in range(50):
        tally.note(denied(f"User:{number}", host=f"10.0.0.{number}"), number)
    lines = [json.loads(line) for line in tally.close()]
    assert [(line["principal"], line["count"]) for line in lines] == [("various", 40)]


def test_what_waits_is_bounded_and_half_of_it_is_kept_for_what_is_important() -> None:
    lines = Lines(100)
    assert all(lines.put(b"x" * 10, important=False) for _ in range(5))
    assert not lines.put(b"x" * 10, important=False)
    assert all(lines.put(b"y" * 10, important=True) for _ in range(5))
    assert not lines.put(b"y" * 10, important=True)
    assert lines.lost == 2
    assert len(lines.take()) == 10
    assert lines.put(b"x" * 10, important=False)


@given(st.lists(st.integers(0, 60_000), max_size=200))
def test_a_line_has_so_many_changes_and_so_many_bytes_and_none_is_left_out(sizes: list[int]) -> None:
    changes = [{"name": "x" * size} for size in sizes]
    found = list(portions(changes))
    assert [one for portion in found for one in portion] == changes
    assert all(portion for portion in found)
    for portion in found:
        assert len(portion) <= CHANGES_PER_LINE_MAX
        assert len(portion) == 1 or sum(len(one["name"]) for one in portion) <= CHANGES_BYTES_MAX


def test_a_gap_is_told() -> None:
    found = json.loads(lost_line(7, "the disk is full", 0, 3))
    assert (found["event"], found["outcome"], found["count"], found["reason"], found["broker"]) == (
        "audit", "failed", 7, "the disk is full", 3,
    )  # fmt: skip
