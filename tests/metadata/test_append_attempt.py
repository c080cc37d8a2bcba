"""The rules of an append, as a table and as whole conversations that a person can read (``docs/formats.md``, "Writing")."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.units import LogSequence, TimestampMs
from app.metadata.log.append_attempt import (
    BACKOFF_MAX_S,
    Action,
    AppendAttempt,
    GiveUp,
    Lost,
    Ours,
    Put,
    PutOutcome,
    ReadBack,
    ReadOutcome,
)
from app.metadata.log.log_format import Entry

SCENARIOS = Path(__file__).with_name("append_scenarios.txt")
NONCE = bytes(range(16))


def entry(writer_id: str, nonce: bytes) -> Entry:
    return Entry(LogSequence(7), writer_id, nonce, False, 0, bytes(16), TimestampMs(0), ())


READS: dict[str, Entry | ReadOutcome] = {
    "ours": entry("me", NONCE),
    "another's": entry("rival", bytes(16)),
    "an earlier one of ours": entry("me", bytes(16)),
    "our nonce by chance": entry("rival", NONCE),
    "missing": ReadOutcome.MISSING,
    "undecided": ReadOutcome.UNDECIDED,
    "corrupt": ReadOutcome.CORRUPT,
}


def attempt(deadline_s: float = 30.0) -> AppendAttempt:
    return AppendAttempt(writer_id="me", nonce=NONCE, deadline_s=deadline_s)


def in_words(action: Action) -> str:
    match action:
        case Put(delay_s):
            return f"put the same bytes after {delay_s:g} s"
        case ReadBack(delay_s):
            return f"read back after {delay_s:g} s"
        case Ours():
            return "ours"
        case Lost(winner):
            return f"lost to {winner.writer_id}"
        case GiveUp(corrupt):
            return "give up: " + ("the entry is corrupt" if corrupt else "undecided")


def play(lines: list[str]) -> list[str]:
    """Answer every outcome line of a scenario with the action that follows."""
    machine, now_s, answered = attempt(), 0.0, []
    for line in lines:
        outcome = line.split(" -> ")[0]
        subject, _, how = outcome.partition(": ")
        if subject == "start":
            action = machine.start()
        elif subject == "put":
            action = machine.on_put(PutOutcome[how.upper()], now_s)
        elif subject == "read":
            action = machine.on_read(READS[how], now_s)
        else:
            assert subject == "time", line
            now_s = float(how.removesuffix(" s"))
            answered.append(outcome)
            continue
        answered.append(f"{outcome} -> {in_words(action)}")
    return answered


def test_conversations_go_as_written_down() -> None:
    """Run with FIRN_REWRITE_GOLDEN=1 to write the answers anew, and read the difference."""
    rewritten = []
    for block in SCENARIOS.read_text().strip().split("\n\n"):
        title, *lines = block.splitlines()
        rewritten.append("\n".join([title, *play(lines)]))
    text = "\n\n".join(rewritten) + "\n"
    if os.environ.get("FIRN_REWRITE_GOLDEN"):
        SCENARIOS.write_text(text)
    assert text == SCENARIOS.read_text()


@pytest.mark.parametrize("name", ["another's", "an earlier one of ours", "our nonce by chance"])
def test_any_other_entry_under_the_number_is_a_loss(name: str) -> None:
    assert isinstance(attempt().on_read(READS[name], 0.0), Lost)


def test_missing_on_the_read_back_is_not_taken_as_not_written() -> None:
    machine = attempt()
    machine.on_put(PutOutcome.EXISTS, 0.0)
    assert isinstance(machine.on_read(ReadOutcome.MISSING, 0.0), Put)


outcomes = st.one_of(st.sampled_from(list(PutOutcome)), st.sampled_from(sorted(READS)))


@given(st.lists(outcomes, max_size=60), st.floats(0.1, 100))
def test_nothing_but_a_written_or_read_entry_decides_before_the_deadline(
    script: list[PutOutcome | str], deadline_s: float
) -> None:
    machine, now_s = attempt(deadline_s), 0.0
    for outcome in script:
        action = (
            machine.on_put(outcome, now_s)
            if isinstance(outcome, PutOutcome)
            else machine.on_read(READS[outcome], now_s)
        )
        match action:
            case Ours():
                assert outcome in (PutOutcome.WRITTEN, "ours")
                return
            case Lost():
                assert outcome in ("another's", "an earlier one of ours", "our nonce by chance")
                return
            case GiveUp(corrupt):
                assert now_s + BACKOFF_MAX_S >= deadline_s
                assert corrupt == (outcome == "corrupt")
                return
            case Put(delay_s) | ReadBack(delay_s):
                assert 0 <= delay_s <= BACKOFF_MAX_S
                assert now_s + delay_s < deadline_s
                now_s += delay_s
