"""The leader's state of `_schemas`: the condition, ids, and keys (ADR 0041)."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from app.coordinator.partition import ReplayedBatch
from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import whole
from app.core.units import NO_PRODUCER_ID, Offset, ProducerEpoch
from app.registry.ownership import OWNER_KEY, Ownership, encode_ownership, ownership_of
from app.schemas import shard as module
from app.schemas.records import read_asked
from app.schemas.shard import SKIPPED, Admitted, SchemaShard
from tests.support.schema_records import operator_record, schema_key, schema_record, schema_value

Records = Sequence[tuple[bytes, bytes | None]]


class Log:
    """The turn of a shard, and its log."""

    now_ms = 0
    steady_ms = 0

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []
        self.refuses = False
        self.timers: list[Hashable] = []

    def append(self, records: Any, *, producer: Any = None) -> Offset:
        if self.refuses:
            raise RequestRejected(ErrorCode.NOT_ENOUGH_REPLICAS)
        self.records += records
        return Offset(len(self.records))

    def answer(self, reply: Any, answer: Any) -> None:
        raise AssertionError("no request waits")

    def set_timer(self, key: Hashable, delay_ms: int) -> None:
        self.timers.append(key)

    def cancel_timer(self, key: Hashable) -> None:
        raise AssertionError("no timer is cancelled")


def loaded(log: Log, *, unclean_epoch: int = -1) -> SchemaShard:
    """The shard of the next leader."""
    shard = SchemaShard()
    if log.records:
        end = Offset(len(log.records))
        shard.load(ReplayedBatch(end, NO_PRODUCER_ID, ProducerEpoch(-1), list(log.records), None))
    shard.unclean_epoch = unclean_epoch
    shard.loaded(log)
    return shard


def append(
    shard: SchemaShard, log: Log, subject: str | None, *records: tuple[bytes, bytes | None], operator: bool = False
) -> Admitted:
    asked = read_asked(subject, records)
    whole(shard.check(asked, is_operator=operator))
    return shard.append(log, shard.end, records, asked)


def refusal(shard: SchemaShard, log: Log, subject: str | None, *records: tuple[bytes, bytes | None], **how: Any) -> str:
    before = list(log.records)
    with pytest.raises(RequestRejected) as refused:
        append(shard, log, subject, *records, **how)
    assert log.records == before
    return str(refused.value)


def greatest_in(log: Log) -> Ownership:
    found = [one for record in log.records if (one := ownership_of(*record)) is not None]
    return found[-1]


def test_an_append_counts_only_where_the_log_ends() -> None:
    log = Log()
    shard = loaded(log)
    records = [schema_record("a-value", 1)]
    assert shard.append(log, 1, records, read_asked("a-value", records)) == (0, True)
    assert log.records == []
    assert append(shard, log, "a-value", *records) == (2, False)
    assert shard.append(log, 0, records, read_asked("a-value", records)) == (2, True)


def test_the_greatest_id_is_written_in_the_batch_of_the_id_and_again_only_with_the_next_id() -> None:
    log = Log()
    shard = loaded(log)
    append(shard, log, "a-value", schema_record("a-value", 1))
    assert [key for key, _ in log.records] == [schema_key("a-value"), OWNER_KEY]
    append(shard, log, "b-value", schema_record("b-value", 1))
    assert [key for key, _ in log.records[2:]] == [schema_key("b-value")]
    append(shard, log, ":.x:b-value", schema_record(":.x:b-value", 4))
    assert greatest_in(log).greatest == {".": 1, ".x": 4}


def test_an_id_never_comes_twice_though_compaction_has_dropped_it() -> None:
    log = Log()
    shard = loaded(log)
    append(shard, log, "a-value", schema_record("a-value", 5))
    append(shard, log, "a-value", (schema_key("a-value"), None))
    newest = {key: value for key, value in log.records if value is not None}
    del newest[schema_key("a-value")]
    log.records = list(newest.items())
    again = loaded(log)
    assert again.greatest(".") == 5
    assert "gives the id 5 again" in refusal(again, log, "b-value", schema_record("b-value", 5, '"long"'))
    append(again, log, "b-value", schema_record("b-value", 6, '"long"'))


def test_an_id_stands_for_one_schema() -> None:
    log = Log()
    shard = loaded(log)
    append(shard, log, "a-value", schema_record("a-value", 5))
    append(shard, log, "b-value", schema_record("b-value", 5))
    assert "to another schema" in refusal(shard, log, "c-value", schema_record("c-value", 5, '"long"'))
    both = schema_record("c-value", 6), schema_record("c-value", 6, '"long"', version=2)
    assert "to another schema" in refusal(shard, log, "c-value", *both)
    append(shard, log, ":.x:c-value", schema_record(":.x:c-value", 5, '"long"'))
    assert "to another schema" in refusal(loaded(log), log, "c-value", schema_record("c-value", 5, '"long"'))


def test_only_an_operator_imports_an_id_below_the_greatest() -> None:
    log = Log()
    shard = loaded(log)
    append(shard, log, "a-value", schema_record("a-value", 5000))
    assert "The next id is 5001" in refusal(shard, log, "b-value", schema_record("b-value", 7, '"long"'))
    append(shard, log, "b-value", schema_record("b-value", 7, '"long"'), operator=True)
    assert "gives the id 9 again" in refusal(shard, log, "b-value", schema_record("b-value", 9, '"int"', version=2))


def test_after_a_lost_end_ids_skip_a_thousand_in_every_context_before_any_is_given() -> None:
    log = Log()
    append(loaded(log), log, "a-value", schema_record("a-value", 3))
    shard = loaded(log, unclean_epoch=0)
    assert greatest_in(log) == Ownership({".": 3 + SKIPPED}, SKIPPED, True, 0)
    assert (shard.greatest("."), shard.greatest(".new")) == (3 + SKIPPED, SKIPPED)
    assert "gives the id 4 again" in refusal(shard, log, "b-value", schema_record("b-value", 4, '"long"'))
    next_leader = loaded(log, unclean_epoch=0)
    assert (next_leader.greatest("."), next_leader.greatest(".new")) == (3 + SKIPPED, SKIPPED)


def test_a_skip_that_cannot_be_written_is_tried_again_and_counts_meanwhile() -> None:
    log = Log()
    append(loaded(log), log, "a-value", schema_record("a-value", 3))
    log.refuses = True
    shard = loaded(log, unclean_epoch=0)
    assert shard.greatest(".") == 3 + SKIPPED
    (timer,) = log.timers
    log.refuses = False
    shard.due(log, timer)
    assert greatest_in(log).greatest == {".": 3 + SKIPPED}
    assert len(log.timers) == 1
    assert shard.end == len(log.records)


def test_a_skip_that_was_lost_before_it_was_committed_is_written_by_the_next_leader() -> None:
    log = Log()
    append(loaded(log), log, "a-value", schema_record("a-value", 3))
    loaded(log, unclean_epoch=0)
    del log.records[2:]
    assert loaded(log, unclean_epoch=0).greatest(".") == 3 + SKIPPED
    assert greatest_in(log).skipped == 0


def test_a_loss_that_took_the_record_of_an_earlier_loss_skips_further() -> None:
    log = Log()
    append(loaded(log), log, "a-value", schema_record("a-value", 3))
    shard = loaded(log, unclean_epoch=0)
    append(shard, log, "b-value", schema_record("b-value", 4 + SKIPPED, '"long"'))
    del log.records[2:]
    assert loaded(log, unclean_epoch=1).greatest(".") == 3 + 2 * SKIPPED


def test_a_log_that_lost_everything_skips_ids_and_belongs_to_no_registry() -> None:
    log = Log()
    shard = loaded(log, unclean_epoch=0)
    assert greatest_in(log) == Ownership({}, SKIPPED, False, 0)
    assert not shard.owned
    assert "The next id is 1001" in refusal(shard, log, "a-value", schema_record("a-value", 1))
    append(shard, log, "a-value", schema_record("a-value", SKIPPED + 1))
    assert shard.owned
    assert greatest_in(log) == Ownership({".": SKIPPED + 1}, SKIPPED, True, 0)


def test_a_skip_in_a_log_of_another_registry_is_written_with_the_first_record_of_firns_own() -> None:
    log = Log()
    log.records = [schema_record("a-value", 3)]
    shard = loaded(log, unclean_epoch=0)
    assert len(log.records) == 1
    append(shard, log, None, operator_record("MODE", None, mode="READWRITE"), operator=True)
    assert greatest_in(log) == Ownership({".": 3 + SKIPPED}, SKIPPED, True, 0)


def test_a_deletion_covers_every_form_in_which_a_key_is_present() -> None:
    log = Log()
    other_form = json.dumps({"magic": 1, "subject": "a-value", "version": 1, "keytype": "SCHEMA"}).encode()
    log.records = [(other_form, schema_value("a-value", 1)), (OWNER_KEY, encode_ownership(Ownership({".": 1})))]
    shard = loaded(log)
    append(shard, log, "a-value", (schema_key("a-value"), schema_value("a-value", 1, deleted=True)))
    assert "in several forms" in refusal(shard, log, "a-value", (schema_key("a-value"), None))
    assert "in several forms" in refusal(loaded(log), log, "a-value", (other_form, None))
    append(shard, log, "a-value", (schema_key("a-value"), None), (other_form, None))
    assert shard.key_count == 0


def test_on_a_topic_of_another_registry_only_an_operators_switch_is_written() -> None:
    log = Log()
    log.records = [schema_record("a-value", 1)]
    shard = loaded(log)
    assert (shard.foreign, shard.owned) == (True, False)
    assert "read-only" in refusal(shard, log, "b-value", schema_record("b-value", 2, '"long"'), operator=True)
    switch = operator_record("MODE", None, mode="READWRITE")
    assert "read-only" in refusal(shard, log, None, switch, operator=False)
    append(shard, log, None, switch, operator=True)
    assert loaded(log).owned
    append(shard, log, "b-value", schema_record("b-value", 2, '"long"'))


def test_a_no_operation_of_another_registry_makes_no_owner() -> None:
    log = Log()
    log.records = [(OWNER_KEY, None), (b"\xff", b"junk"), (b'{"keytype":"SCHEMA"}', b"{}")]
    shard = loaded(log)
    assert not shard.owned
    assert shard.end == 3


def test_a_failed_append_changes_nothing() -> None:
    log = Log()
    shard = loaded(log)
    log.refuses = True
    refusal(shard, log, "a-value", schema_record("a-value", 1))
    assert (shard.owned, shard.greatest("."), shard.id_count, shard.key_count, shard.end) == (False, 0, 0, 0, 0)


@pytest.mark.parametrize("limit", ["IDS_MAX", "KEYS_MAX", "CONTEXTS_MAX"])
def test_ids_keys_and_contexts_are_bounded(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(module, limit, 2)
    log = Log()
    shard = loaded(log)
    for number in (1, 2):
        subject = f":.{number}:a-value"
        append(shard, log, subject, schema_record(subject, number))
    subject = ":.3:a-value"
    assert " at most" in refusal(shard, log, subject, schema_record(subject, 3))
    append(shard, log, ":.1:a-value", (schema_key(":.1:a-value"), None))
