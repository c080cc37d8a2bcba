"""What the controller hands out: entries to append and answers, as conversations that a person can read, and as a property."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.configs import BrokerConfig
from app.core.errors import ErrorCode, FirnError, RequestRejected, StorageUnavailable
from app.core.units import BrokerId, LogSequence, TimestampMs, TopicId
from app.metadata.changes import topic_changes as changes
from app.metadata.changes.topic_changes import PlanInputs, Planned
from app.metadata.controller import decisions
from app.metadata.controller.decisions import Answer, Decisions, Plan
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import ClusterImage, TopicImage
from app.metadata.image.records import Kind, group_configs_change
from app.metadata.log.log_format import KeyValue, decode_key
from tests.metadata.support import uuid_of

SCENARIOS = Path(__file__).with_name("decision_scenarios.txt")
AROUND = PlanInputs(BrokerConfig(), [BrokerId(1)], TimestampMs(5), 0)


def plan_of(words: Sequence[str], number: int) -> Plan:
    """``create NAME PARTITIONS``, ``delete NAME`` or ``ids``. The topic's id is made of its name and of ``number``."""
    match words:
        case ("create", name, partitions):
            topic_id = TopicId(uuid_of(int.from_bytes(f"{name}#{number}".encode())))
            return lambda draft, around: changes.create_topic(
                draft,
                around,
                topic_id=topic_id,
                name=name,
                partitions=int(partitions),
                replication_factor=-1,
                configs={},
                assignments=None,
            )
        case ("delete", name):
            return lambda draft, _: changes.delete_topic(draft, name=name, topic_id=None)
        case ("ids",):
            return lambda draft, _: changes.allocate_producer_ids(draft, BrokerId(1))
    raise AssertionError(words)


def record_in_words(record: KeyValue) -> str:
    kind, *parts = decode_key(record[0])
    name = " ".join([Kind(kind).name.lower(), *(named(part) for part in parts)])
    if record[1] is None:
        return f"{name} gone"
    return f"{name} = {' '.join(str(field) for field in msgspec.msgpack.decode(record[1])[1:])}"


def named(part: object) -> str:
    """As ``plan_of`` makes it."""
    return part.lstrip(b"\0").decode() if isinstance(part, bytes) else str(part)


def answers_in_words(answers: Iterable[Answer]) -> str:
    said = []
    for number, value, error in answers:
        if error is not None:
            code = f"{ErrorCode(error.code).name}: " if isinstance(error, RequestRejected) else ""
            said.append(f"{number}: {code}{error}")
        elif isinstance(value, TopicImage):
            said.append(f"{number}: topic {value.name} with {len(value.partitions)} partitions")
        else:
            said.append(f"{number}: {value}")
    return "; ".join(said) or "nobody is answered"


class Play:
    """A controller whose log is one image."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.decisions = Decisions()
        self.plans: list[Plan] = []

    def new_plan(self, words: Sequence[str]) -> Plan:
        self.plans.append(plan_of(words, len(self.plans)))
        return self.plans[-1]

    def apply(self, records: Sequence[KeyValue]) -> None:
        draft = ImageDraft(self.image)
        draft.apply(records)
        self.image = draft.freeze(LogSequence(self.image.sequence + 1))

    def step(self, line: str) -> str:
        core = self.decisions
        match line.split():
            case ("submit", *words):
                return f"change {core.submit(self.new_plan(words))}"
            case ("check", *words):
                return f"change {core.submit(self.new_plan(words), validate_only=True)}"
            case ("begin",):
                core.begin(self.image, AROUND)
                return f"{core.waiting} wait"
            case ("plan", count):
                return "call again" if core.plan(int(count)) else "that is all"
            case ("entry",):
                return "; ".join(record_in_words(record) for record in core.entry) or "no records"
            case ("durable",):
                self.apply(core.entry)
                return answers_in_words(core.durable())
            case ("overtaken", "by", *words):
                self.apply(plan_of(words, 99)(ImageDraft(self.image), AROUND).records)
                core.overtaken()
                return f"{core.waiting} wait"
            case ("undecided",):
                return answers_in_words(core.undecided(StorageUnavailable("the store does not answer")))
            case ("refuse",):
                return answers_in_words(core.refuse_waiting(StorageUnavailable("The broker is stopping")))
        raise AssertionError(line)


def test_conversations_go_as_written_down() -> None:
    """Run with FIRN_REWRITE_GOLDEN=1 to write the answers anew, and read the difference."""
    rewritten = []
    for block in SCENARIOS.read_text().strip().split("\n\n"):
        title, *lines = block.splitlines()
        play = Play()
        said = [line.split(" -> ")[0] for line in lines]
        rewritten.append("\n".join([title, *(f"{line} -> {play.step(line)}" for line in said)]))
    text = "\n\n".join(rewritten) + "\n"
    if os.environ.get("FIRN_REWRITE_GOLDEN"):
        SCENARIOS.write_text(text)
    assert text == SCENARIOS.read_text()


def wide(size: int) -> Plan:
    """A change of about ``size`` bytes."""

    def plan(draft: ImageDraft, around: PlanInputs) -> Planned[int]:
        return Planned([group_configs_change(f"g{size}", {"a": "x" * size})], size)

    return plan


def test_an_entry_has_no_more_changes_and_bytes_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "GROUP_CHANGES_MAX", 5)
    monkeypatch.setattr(decisions, "GROUP_BYTES_MAX", 3_000)
    core = Decisions()
    for _ in range(12):
        core.submit(wide(10))
    for size in (2_000, 2_000, 9_000, 10):
        core.submit(wide(size))
    sizes = []
    while core.waiting:
        core.begin(ClusterImage(), AROUND)
        while core.plan(3):
            pass
        sizes.append([answer.value for answer in core.durable()])
        assert sizes[-1], "an entry takes one change at least"
    assert sizes == [[10] * 5, [10] * 5, [10, 10, 2_000], [2_000], [9_000], [10]]


def test_no_more_changes_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "PENDING_CHANGES_MAX", 2)
    core = Decisions()
    assert [core.submit(wide(1)), core.submit(wide(1))] == [0, 1]
    with pytest.raises(RequestRejected) as refused:
        core.submit(wide(1))
    assert refused.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    core.refuse_waiting(StorageUnavailable("x"))
    assert core.submit(wide(1)) == 2, "a number is used once"


def test_a_record_of_the_seal_comes_first_and_is_an_entry_alone() -> None:
    seal = group_configs_change("seal", {"a": "b"})
    core = Decisions()
    core.begin(ClusterImage(), AROUND, [seal])
    assert not core.plan(10)
    assert core.entry == [seal]
    assert core.durable() == []


def refusal_in_words(error: FirnError | None) -> str:
    return f"{error.code} {error}" if isinstance(error, RequestRejected) else str(error or "")


def alone(plan: Plan, draft: ImageDraft) -> tuple[Sequence[KeyValue], Any, str]:
    """Records, value and refusal of a change that is planned by itself."""
    try:
        planned = plan(draft, AROUND)
    except RequestRejected as error:
        return (), None, refusal_in_words(error)
    return planned.records, planned.answer, ""


steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["submit", "check"]), st.sampled_from(["create a 1", "delete a", "create b 2", "ids"])
        ),
        st.sampled_from(
            [("durable", ""), ("overtaken", "by create c 1"), ("overtaken", "by delete a"), ("undecided", "")]
        ),
        st.just(("refuse", "")),
        st.tuples(st.just("plan"), st.sampled_from(["1", "2", "40"])),
    ),
    max_size=60,
)


@given(steps)
def test_every_change_is_answered_once_and_durable_ones_are_made_in_the_order_of_the_calls(
    script: list[tuple[str, str]],
) -> None:
    play = Play()
    core = play.decisions
    model = ClusterImage()
    answered: dict[int, Any] = {}
    plans: dict[int, tuple[Plan, bool]] = {}
    begun = False

    def note(answers: Iterable[Answer]) -> list[Answer]:
        found = list(answers)
        for answer in found:
            assert answer.number not in answered
            answered[answer.number] = answer
        return found

    for verb, rest in script:
        if verb in ("submit", "check"):
            plan = play.new_plan(rest.split())
            plans[core.submit(plan, validate_only=verb == "check")] = (plan, verb == "check")
        elif verb == "refuse":
            note(core.refuse_waiting(StorageUnavailable("x")))
        else:
            if not begun:
                core.begin(play.image, AROUND)
                begun = True
            if verb == "plan":
                core.plan(int(rest))
                continue
            begun = False
            if verb == "overtaken":
                try:
                    play.step(f"overtaken {rest}")
                except RequestRejected:
                    core.overtaken()
                model = play.image
            elif verb == "undecided":
                note(core.undecided(StorageUnavailable("x")))
            else:
                play.apply(core.entry)
                for answer in note(core.durable()):
                    # One after another, each alone, on what the one before has left: the same comes out.
                    plan, only_checked = plans[answer.number]
                    draft = ImageDraft(model)
                    records, value, refusal = alone(plan, draft)
                    assert (answer.value, refusal_in_words(answer.error)) == (value, refusal)
                    if not only_checked:
                        draft.apply(records)
                        model = draft.freeze(LogSequence(model.sequence + 1))
                assert set(model.topics_by_name) == set(play.image.topics_by_name)
                assert model.producer_id_next == play.image.producer_id_next
    if begun:
        core.overtaken()
    note(core.refuse_waiting(StorageUnavailable("x")))
    assert set(answered) == set(plans)
