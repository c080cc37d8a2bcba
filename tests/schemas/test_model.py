"""Two registries write to `_schemas` at once: answers are lost, leaders change, and the log loses its end (ADR 0041).

The leader's shard is the real one. The log, its replicas and the processes are small models. Checkers look at what consumers and
callers can see. Each rule is taken back once, and the checker that is meant for it must find that.
"""

from __future__ import annotations

import json
import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from app.coordinator.partition import ReplayedBatch
from app.core.errors import RequestRejected
from app.core.turns import whole
from app.core.units import NO_PRODUCER_ID, Offset, ProducerEpoch
from app.registry.ownership import OWNER_KEY, Ownership, ownership_of
from app.schemas.records import Meaning, RawRecord, read_asked
from app.schemas.shard import Admitted, SchemaShard
from tests.sim.planted import assert_found
from tests.sim.violation import Violation
from tests.support.schema_records import schema_key, schema_record

SEEDS = 60
STEPS = 300
SUBJECTS = ("a-value", "b-value")
NEVER = -1


class Rules(NamedTuple):
    """The rules that hold; a test takes one back."""

    compares_end: bool = True
    compares_history: bool = True
    waits_for_commit: bool = True
    checks_ids: bool = True
    keeps_greatest: bool = True
    skips: bool = True
    covers_forms: bool = True
    looks: bool = True


class Shard(SchemaShard):
    """The real one, but for rules that were taken back."""

    rules = Rules()

    def append(self, turn: Any, expected_end: int, records: Sequence[RawRecord], asked: Sequence[Meaning]) -> Admitted:
        return super().append(turn, expected_end if self.rules.compares_end else self.end, records, asked)

    def _check_id(self, place: int, one: Meaning, new_ids: dict[tuple[str, int], int], is_operator: bool) -> None:
        if self.rules.checks_ids:
            super()._check_id(place, one, new_ids, is_operator)

    def _forms_of(self, name: int) -> tuple[int, ...]:
        found = super()._forms_of(name)
        return found if self.rules.covers_forms else found[:0]


@dataclass
class View:
    """The log as a process has read it."""

    end: int = 0
    history: int = 0
    greatest: int = 0
    versions: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    """Text and id of each version that is present."""
    forms: dict[tuple[str, int], set[bytes]] = field(default_factory=dict)


@dataclass
class Process:
    """A registry that carries out one intent after the other."""

    number: int
    view: View = field(default_factory=View)
    intent: tuple[str, str, str] | None = None
    """Register or purge; the subject; the text."""
    expected_end: int = 0
    history: int = 0
    records: list[RawRecord] = field(default_factory=list)
    state: str = "idle"
    """``idle``; ``sent``; ``waiting`` for a commit; ``lost``: the answer will not come."""
    answer: Admitted | None = None
    uncertain: bool = False
    """Whether an earlier try of the same request may count."""


class World:
    """The log, its leader, and two processes. It is the turn of the leader's shard, too."""

    now_ms = 0
    steady_ms = 0

    def __init__(self, seed: int, rules: Rules) -> None:
        self.rng = random.Random(seed)
        self.rules = rules
        self.entries: dict[int, RawRecord] = {}
        self.end = self.committed = self.history = 0
        self.processes = [Process(0), Process(1)]
        self.late: list[tuple[int, int, list[RawRecord]]] = []
        """Requests that the network still has."""
        self.switched = 0
        """The end of an operator's switch, which is not lost here."""
        self.texts = 0
        self.given: dict[int, str] = {}
        """By id: the text that consumers have seen."""
        self.purged: dict[tuple[str, int], int] = {}
        """By version: the offset at which its purge was acknowledged."""
        self.acknowledged = 0
        """The end of the acknowledged records of this history."""
        self.shard = self.replayed()

    # --- the log ------------------------------------------------------------------------------------------------------

    def append(self, records: Any, *, producer: Any = None) -> Offset:
        for record in records:
            if self.rules.keeps_greatest or record[0] != OWNER_KEY:
                self.entries[self.end] = record
            elif self.end == 0 or not any(key == OWNER_KEY for key, _ in self.entries.values()):
                self.entries[self.end] = OWNER_KEY, b'{"firn":1}'
            self.end += 1
        return Offset(self.end)

    def answer(self, reply: Any, answer: Any) -> None:
        raise AssertionError("no request waits in the shard")

    def set_timer(self, key: Hashable, delay_ms: int) -> None:
        raise AssertionError("an append does not fail")

    def cancel_timer(self, key: Hashable) -> None:
        raise AssertionError("there is no timer")

    def replayed(self) -> Shard:
        shard = Shard()
        shard.rules = self.rules
        if self.entries:
            records = [self.entries[offset] for offset in sorted(self.entries)]
            shard.load(ReplayedBatch(Offset(self.end), NO_PRODUCER_ID, ProducerEpoch(-1), records, None))
        shard.end = Offset(self.end)
        shard.unclean_epoch = self.history - 1 if self.rules.skips else -1
        shard.loaded(self)
        return shard

    def commit(self) -> None:
        before, self.committed = self.committed, self.end
        for offset in range(before, self.end):
            if offset in self.entries:
                self.check_committed(offset, *self.entries[offset])
        for process in self.processes:
            if process.state == "waiting":
                self.answered(process)

    def check_committed(self, offset: int, key: bytes, value: bytes | None) -> None:
        if value is None or json.loads(key)["keytype"] != "SCHEMA":
            return
        told = json.loads(value)
        seen = self.given.setdefault(told["id"], told["schema"])
        if seen != told["schema"]:
            raise Violation("ids", f"id {told['id']} was {seen} and is {told['schema']}")
        self.purged.pop((told["subject"], told["version"]), None)
        for earlier in range(offset):
            if self.entries.get(earlier, (b"", None))[0] == key:
                old = self.entries[earlier][1]
                later = [at for at in range(earlier + 1, offset) if self.entries.get(at, (b"",))[0] == key]
                if old is not None and not later and json.loads(old)["schema"] != told["schema"]:
                    raise Violation("versions", f"{told['subject']} {told['version']} was overwritten")

    def compact(self) -> None:
        """Keep the newest record of each key, and no tombstones, below the committed end."""
        newest = {self.entries[offset][0]: offset for offset in sorted(self.entries) if offset < self.committed}
        for offset in [each for each in self.entries if each < self.committed]:
            key, value = self.entries[offset]
            if newest[key] != offset or value is None:
                del self.entries[offset]
        view = View()
        self.read_into(view)
        for version in self.purged:
            if version in view.versions:
                raise Violation("deletions", f"{version} is back")

    def change_leader(self, *, loses_end: bool) -> None:
        """Another replica leads. It has all committed records, and maybe those that are not committed; or it has lost some."""
        kept = self.end if self.rng.random() < 0.5 else self.committed
        if loses_end:
            kept = max(self.rng.randrange(max(0, self.committed - 6), self.committed + 1), self.switched)
            self.history += 1
            self.purged.clear()
        elif kept < self.acknowledged:
            raise Violation("commits", f"{self.acknowledged - kept} acknowledged records are gone")
        self.entries = {offset: record for offset, record in self.entries.items() if offset < kept}
        self.end = kept
        self.committed = min(self.committed, kept)
        self.acknowledged = min(self.acknowledged, kept)
        for process in self.processes:
            if process.state == "waiting":
                process.state, process.uncertain = "lost", True
        self.shard = self.replayed()

    # --- processes ----------------------------------------------------------------------------------------------------

    def read_into(self, view: View) -> None:
        """Read on to the committed end; from the start, if the log has lost its end."""
        if (self.rules.compares_history and view.history != self.history) or view.end > self.committed:
            view.__init__()  # type: ignore[misc]
        view.history = self.history
        for offset in range(view.end, self.committed):
            if offset in self.entries:
                key, value = self.entries[offset]
                ownership = ownership_of(key, value)
                if ownership is not None:
                    view.greatest = max(view.greatest, ownership.greatest_of("."))
                named = json.loads(key)
                if named["keytype"] != "SCHEMA":
                    continue
                version = named["subject"], named["version"]
                forms = view.forms.setdefault(version, set())
                if value is None:
                    view.versions.pop(version, None)
                    forms.discard(key)
                else:
                    told = json.loads(value)
                    view.versions[version] = told["schema"], told["id"]
                    view.greatest = max(view.greatest, told["id"])
                    forms.add(key)
        view.end = self.committed

    def begin(self, process: Process) -> None:
        self.texts += 1
        kind = self.rng.choice(("register", "register", "purge"))
        process.intent = kind, self.rng.choice(SUBJECTS), f'"text-{self.texts}"'
        process.uncertain = False
        self.decide(process)

    def decide(self, process: Process) -> None:
        assert process.intent is not None
        kind, subject, text = process.intent
        view = process.view
        self.read_into(view)
        mine = sorted(version for name, version in view.versions if name == subject)
        if kind == "register":
            version = mine[-1] + 1 if mine else 1
            schema_id = view.greatest + 1
            if self.rng.random() < 0.05:
                schema_id = self.rng.randrange(1, view.greatest + 2)  # a process that means no good
            process.records = [schema_record(subject, schema_id, text, version)]
        else:
            if not mine:
                process.state = "idle"
                return
            forms = sorted(view.forms[subject, mine[-1]])
            if self.rng.random() < 0.2:
                forms = [schema_key(subject, mine[-1])]  # a process that knows one form
            process.records = [(form, None) for form in forms]
            process.intent = kind, subject, view.versions[subject, mine[-1]][0]
        process.expected_end, process.history = view.end, view.history
        process.state = "sent"

    def deliver(self, process: Process) -> None:
        """A request arrives; or it is lost, and may arrive late."""
        if self.rng.random() < 0.15:
            if self.rng.random() < 0.5:
                self.late.append((process.expected_end, process.history, process.records))
            process.state, process.uncertain = "lost", True
            return
        try:
            process.answer = self.admitted(process.expected_end, process.history, process.records)
        except RequestRejected:
            process.state = "idle"
            return
        if self.rules.waits_for_commit and self.committed < self.end:
            process.state = "waiting"
        else:
            self.answered(process)

    def admitted(self, expected_end: int, history: int, records: list[RawRecord]) -> Admitted:
        if self.rules.compares_history and history != self.history:
            expected_end = NEVER
        subject = json.loads(records[0][0])["subject"]
        asked = read_asked(subject, records)
        if expected_end == self.shard.end or not self.rules.compares_end:
            whole(self.shard.check(asked, is_operator=False))
        return self.shard.append(self, expected_end, records, asked)

    def answered(self, process: Process) -> None:
        """The leader's answer arrives, or is lost."""
        assert process.answer is not None
        if self.rng.random() < 0.25:
            process.state, process.uncertain = "lost", True
            return
        if not process.answer.moved:
            self.done(process, process.answer.end)
            return
        if process.uncertain and self.rules.looks:
            at = [process.expected_end + place for place in range(len(process.records))]
            if [self.entries.get(offset) for offset in at] == process.records and at[-1] < self.committed:
                self.done(process, at[-1] + 1)
                return
        wrote = process.uncertain and process.history == self.history and self.counts(process)
        process.uncertain = False
        self.decide(process)
        if wrote and process.state == "idle":
            raise Violation("answers", "a purge that counted is answered with 404")
        if wrote and process.state == "sent" and process.intent is not None and process.intent[0] == "register":
            raise Violation("answers", "a schema that was registered is registered again")

    def counts(self, process: Process) -> bool:
        at = [process.expected_end + place for place in range(len(process.records))]
        return [self.entries.get(offset) for offset in at] == process.records

    def done(self, process: Process, end: int) -> None:
        self.acknowledged = max(self.acknowledged, end)
        assert process.intent is not None
        if process.intent[0] == "purge":
            named = json.loads(process.records[0][0])
            version = named["subject"], named["version"]
            before = View()
            for offset in range(process.expected_end):
                if offset in self.entries and json.loads(self.entries[offset][0])["keytype"] == "SCHEMA":
                    key, value = self.entries[offset]
                    told = json.loads(key)
                    if (told["subject"], told["version"]) == version:
                        before.versions[version] = ("", 0) if value is None else (json.loads(value)["schema"], 0)
            found = before.versions.get(version)
            if found is not None and found[0] != process.intent[2] and process.history != self.history:
                raise Violation("histories", f"{version} was purged by a caller who had read another schema")
            if version not in self.live_after(end):
                self.purged[version] = end
        process.state = "idle"

    def live_after(self, start: int) -> set[tuple[str, int]]:
        """The versions that were written at ``start`` or later."""
        found = set()
        for offset in range(start, self.end):
            key, value = self.entries.get(offset, (OWNER_KEY, None))
            if value is not None and json.loads(key)["keytype"] == "SCHEMA":
                found.add((json.loads(key)["subject"], json.loads(key)["version"]))
        return found

    # --- a run --------------------------------------------------------------------------------------------------------

    def foreign_start(self) -> None:
        """The log of another registry, with a key in a form of its own, which an operator has switched."""
        form = json.dumps({"magic": 1, "version": 1, "subject": SUBJECTS[0], "keytype": "SCHEMA"}).encode()
        self.append([(form, schema_record(SUBJECTS[0], 1, '"text-0"')[1]), schema_record(SUBJECTS[0], 1, '"text-0"')])
        self.append([(OWNER_KEY, b'{"firn":1,"ids":{".":1}}')])
        self.shard = self.replayed()
        self.commit()
        self.switched = self.end

    def step(self) -> None:
        process = self.rng.choice(self.processes)
        draw = self.rng.random()
        if draw < 0.04:
            self.change_leader(loses_end=False)
        elif draw < 0.05:
            self.change_leader(loses_end=True)
        elif draw < 0.09:
            self.compact()
        elif draw < 0.12 and self.late:
            expected_end, history, records = self.late.pop(self.rng.randrange(len(self.late)))
            try:
                self.admitted(expected_end, history, records)
            except RequestRejected:
                return
        elif draw < 0.30:
            self.commit()
        elif process.state == "idle":
            self.begin(process)
        elif process.state == "sent":
            self.deliver(process)
        elif process.state == "lost":
            process.state = "sent"


def play(seed: int, rules: Rules) -> World:
    world = World(seed, rules)
    if seed % 2:
        world.foreign_start()
    for _ in range(STEPS):
        world.step()
    world.commit()
    world.compact()
    return world


@pytest.mark.parametrize("seed", range(SEEDS))
def test_ids_versions_and_answers_hold_through_lost_answers_and_changes_of_leader(seed: int) -> None:
    world = play(seed, Rules())
    assert world.given


def test_the_model_reaches_all_that_it_is_about() -> None:
    worlds = [play(seed, Rules()) for seed in range(SEEDS)]
    assert any(world.history for world in worlds)
    assert any(world.purged for world in worlds)
    assert max(max(world.given) for world in worlds) > 1_000, "ids were skipped"
    assert isinstance(worlds[0].shard.greatest("."), int)
    assert Ownership({}).greatest_of(".") == 0


@pytest.mark.parametrize(
    ("rule", "checker"),
    [
        ("compares_end", {"versions", "ids"}),
        ("compares_history", {"histories", "versions", "ids"}),
        ("waits_for_commit", {"commits"}),
        ("checks_ids", {"ids"}),
        ("keeps_greatest", {"ids"}),
        ("skips", {"ids"}),
        ("covers_forms", {"deletions"}),
        ("looks", {"answers"}),
    ],
)
def test_a_rule_that_is_taken_back_is_found_by_its_checker(rule: str, checker: set[str]) -> None:
    def run(seed: int) -> None:
        play(seed, Rules()._replace(**{rule: False}))

    assert_found(checker, range(20 * SEEDS), run)
