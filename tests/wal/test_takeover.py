"""A partition goes on where its ranges and the tier end, with its producers (ADR 0037, J24 to J30)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.core.errors import CorruptionError, LimitExceeded
from app.core.units import LeaderEpoch, Offset, ProducerId, TopicIdPartition
from app.hot.checkpoints import EpochStart
from app.hot.epochs import LeaderEpochs
from app.hot.indexes import AbortedTransaction
from app.hot.producers import ProducerStates
from app.metadata.image.wal_ranges import WalId, WalRange
from app.wal.format import (
    BatchFields,
    PartitionState,
    SectionDraft,
    WalFooter,
    decode_whole,
    encode_object,
    encode_seal,
)
from app.wal.states import captured, replay, restored
from app.wal.takeover import (
    NeedsManifest,
    TakeOver,
    Tiered,
    begins_at_zero,
    continue_from,
    local_end,
    narrowed,
    ranges_are_done,
)
from tests.wal.objects import NONCE, NOW, P, Q, batch, draft, empty_state, fields_of, marker

A, B = WalId(1, 10), WalId(2, 20)


def R(broker_id: int, broker_epoch: int, first: int, last: int) -> WalRange:  # noqa: N802
    """A range of log A has leader epoch 1, one of log B 2."""
    return WalRange(broker_id, broker_epoch, 2 if broker_id == 2 else 1, first, last)


def tiered(end: int, log_start: int = 0) -> Tiered:
    return Tiered(Offset(end), Offset(log_start))


def object_of(wal: WalId, number: int, *drafts: SectionDraft) -> WalFooter:
    return encode_object(wal, number, NONCE, NOW, drafts or [draft(Q, [batch(0)], number)])[1]


def log_of(
    wal: WalId, first: int, *sections: Sequence[int], epoch: int = 1, partition: TopicIdPartition = P
) -> dict[int, WalFooter]:
    """Objects from ``first`` on, each with records of the partition at these offsets, or with none of it."""
    objects: dict[int, WalFooter] = {}
    state = -1
    for number, offsets in enumerate(sections, first):
        if not offsets:
            objects[number] = object_of(wal, number)
            continue
        made = draft(
            partition,
            [batch(offset, epoch=epoch) for offset in offsets],
            number,
            state_number=state if state >= 0 else None,
        )
        state = state if state >= 0 else number
        objects[number] = object_of(wal, number, made)
    return objects


def test_the_end_is_that_of_the_last_section_in_the_ranges() -> None:
    objects = {A: log_of(A, 4, [0, 1], [], [2]), B: log_of(B, 0, [], [3, 4], epoch=2)}
    taken = continue_from(P, [R(*A, 4, 6), R(*B, 0, 1)], objects, None)
    assert isinstance(taken, TakeOver)
    assert taken.end_offset == 5
    assert [(piece.wal, piece.number) for piece in taken.pieces] == [(A, 4), (A, 6), (B, 1)]
    assert taken.leader_epochs is not None
    assert taken.leader_epochs[-1] == (2, 3)


def test_only_what_is_in_the_ranges_counts() -> None:
    objects = {A: log_of(A, 0, [0], [1], [2], [3]), WalId(1, 9): log_of(WalId(1, 9), 0, [0, 1, 2, 3, 4, 5])}
    taken = continue_from(P, [R(*A, 0, 1)], objects, None)
    assert isinstance(taken, TakeOver)
    assert taken.end_offset == 2


def test_sections_of_another_leadership_in_the_same_log_do_not_count() -> None:
    first, second = log_of(A, 0, [0], [1]), log_of(A, 5, [4], epoch=3)
    objects = {A: {**first, **{number: log_of(A, number, [])[number] for number in (2, 3, 4)}, **second}}
    taken = continue_from(P, [WalRange(*A, 3, 0, 5)], objects, tiered(4))
    assert isinstance(taken, TakeOver)
    assert [piece.number for piece in taken.pieces] == [5]
    assert isinstance(continue_from(P, [WalRange(*A, 2, 0, 4)], objects, None), NeedsManifest)


def test_a_trimmed_range_without_a_section_asks_for_the_manifest() -> None:
    objects = {A: log_of(A, 0, [0], [1]), B: log_of(B, 3, [], epoch=2)}
    ranges = [R(*A, 0, 1), R(*B, 0, 3)]
    assert isinstance(continue_from(P, ranges, objects, None), NeedsManifest)
    taken = continue_from(P, ranges, objects, tiered(9))
    assert taken == TakeOver(Offset(9), None, None, ())


def test_a_partition_without_any_section_asks_for_the_manifest() -> None:
    assert isinstance(continue_from(P, [], {}, None), NeedsManifest)
    assert isinstance(continue_from(P, [R(*A, 0, 0)], {A: log_of(A, 0, [])}, None), NeedsManifest)
    assert continue_from(P, [], {}, tiered(7)) == TakeOver(Offset(7), None, None, ())


def test_pieces_below_the_tiered_end_and_the_log_start_are_left_out() -> None:
    objects = {A: log_of(A, 0, [0, 1], [2, 3], [4, 5])}
    for floor in (tiered(3), tiered(0, log_start=3)):
        taken = continue_from(P, [R(*A, 0, 2)], objects, floor)
        assert isinstance(taken, TakeOver)
        assert [piece.number for piece in taken.pieces] == [1, 2]


def test_a_gap_between_tier_and_ranges_is_damage() -> None:
    objects = {A: log_of(A, 1, [2], [3])}
    with pytest.raises(CorruptionError, match="offset 1 to 2 are neither tiered nor"):
        continue_from(P, [R(*A, 0, 2)], objects, tiered(1))
    assert isinstance(continue_from(P, [R(*A, 0, 2)], objects, tiered(2)), TakeOver)


def test_an_object_missing_in_the_middle_is_damage() -> None:
    objects = {A: log_of(A, 0, [0], [], [1])}
    del objects[A][1]
    with pytest.raises(CorruptionError, match="offset 0 to 1 are neither tiered nor"):
        continue_from(P, [R(*A, 0, 2)], objects, tiered(0))


def test_a_trimmed_object_that_is_back_does_not_count() -> None:
    """A put whose answer was lost has landed twice: before the object was trimmed, and after."""
    objects = {A: log_of(A, 0, [0, 1], [2, 3], [4])}
    del objects[A][1], objects[A][2]
    assert isinstance(continue_from(P, [R(*A, 0, 2)], objects, None), NeedsManifest)
    assert continue_from(P, [R(*A, 0, 2)], objects, tiered(5)) == TakeOver(Offset(5), None, None, ())


def test_a_seal_in_a_trimmed_number_is_no_object_of_the_range() -> None:
    objects = {A: log_of(A, 2, [2])}
    seal = decode_whole(encode_seal(A, 0, NONCE, NOW, 9), "wal", A, 0)
    taken = continue_from(P, [R(*A, 0, 2)], {A: {0: seal, **objects[A]}}, tiered(2))
    assert isinstance(taken, TakeOver)
    assert taken.end_offset == 3


def test_records_that_are_there_twice_are_damage() -> None:
    objects = {A: log_of(A, 0, [0, 1]), B: log_of(B, 0, [1], epoch=2)}
    with pytest.raises(CorruptionError, match="an earlier one up to 2"):
        continue_from(P, [R(*A, 0, 0), R(*B, 0, 0)], objects, None)


# --- producers --------------------------------------------------------------------------------------------------------


def _state(batches: Sequence[BatchFields], offset: int) -> PartitionState:
    producers, epochs = ProducerStates(), LeaderEpochs()
    replay(producers, epochs, batches)
    return captured(producers, epochs.entries(), Offset(offset))


def test_five_batches_of_a_producer_are_known_after_a_take_over() -> None:
    sent = [batch(number, epoch=1, producer=7, sequence=number) for number in range(8)]
    fields = [fields_of(data) for data in sent]
    first = SectionDraft(P, sent[4:6], fields[4:6], 3, _state(fields[:4], 4))
    second = SectionDraft(P, sent[6:], fields[6:], 3, None)
    objects = {A: {3: object_of(A, 3, first), 4: object_of(A, 4, second)}}
    taken = continue_from(P, [R(*A, 3, 4)], objects, None)
    assert isinstance(taken, TakeOver)
    assert taken.producers is not None
    assert [each[0] for each in taken.producers.entries[7].batches] == [3, 4, 5, 6, 7]
    early = continue_from(P, [R(*A, 3, 3)], {A: {3: objects[A][3]}}, None)
    assert isinstance(early, TakeOver)
    assert early.producers is not None
    assert [each[0] for each in early.producers.entries[7].batches] == [1, 2, 3, 4, 5]


def test_open_and_decided_transactions_are_known_after_a_take_over() -> None:
    sent = [
        batch(0, epoch=1, producer=7, sequence=0, transactional=True),
        batch(1, epoch=1, producer=8, sequence=0, transactional=True),
        marker(2, 7, aborted=True, epoch=1),
    ]
    fields = [fields_of(sent[0]), fields_of(sent[1]), fields_of(sent[2], marker=0)]
    only = SectionDraft(P, sent, fields, 0, empty_state())
    taken = continue_from(P, [R(*A, 0, 0)], {A: {0: object_of(A, 0, only)}}, None)
    assert isinstance(taken, TakeOver)
    assert taken.producers is not None
    assert taken.producers.open_transactions == {8: 1}
    assert taken.producers.entries[7].coordinator_epoch == 5


def _object_with(number: int, sent: Sequence[bytes], fields: Sequence[BatchFields], state: PartitionState) -> WalFooter:
    state_number = number if state.offset == fields[0].base_offset else number - 1
    return object_of(A, number, SectionDraft(P, sent, fields, state_number, state))


def test_aborted_transactions_are_known_though_they_began_in_the_tier() -> None:
    """Producer 7 began at 0, which is tiered, and was aborted at 4; 8 is open from 1 to 6; 9 was aborted at 3, in the tier."""
    sent = [
        batch(0, epoch=1, producer=7, sequence=0, transactional=True),
        batch(1, epoch=1, producer=8, sequence=0, transactional=True),
        batch(2, epoch=1, producer=9, sequence=0, transactional=True),
        marker(3, 9, aborted=True, epoch=1),
        marker(4, 7, aborted=True, epoch=1),
        batch(5, epoch=1, producer=9, sequence=1, transactional=True),
        marker(6, 8, aborted=False, epoch=1),
        marker(7, 9, aborted=True, epoch=1),
    ]
    markers = {3: 0, 4: 0, 6: 1, 7: 0}
    fields = [fields_of(data, marker=markers.get(offset, -1)) for offset, data in enumerate(sent)]
    objects = {
        A: {
            0: _object_with(0, sent[:3], fields[:3], empty_state()),
            1: object_of(A, 1, SectionDraft(P, sent[3:6], fields[3:6], 0, _state(fields[:5], 5))),
            2: object_of(A, 2, SectionDraft(P, sent[6:], fields[6:], 1, None)),
        }
    }
    taken = continue_from(P, [R(*A, 0, 2)], objects, tiered(4))
    assert isinstance(taken, TakeOver)
    assert [piece.number for piece in taken.pieces] == [1, 2]
    assert taken.aborted == (
        AbortedTransaction(ProducerId(7), Offset(0), Offset(4), Offset(1)),
        AbortedTransaction(ProducerId(9), Offset(5), Offset(7), Offset(8)),
    )
    assert taken.producers is not None
    assert not taken.producers.has_transactions, "everything below the end is committed, so nothing is undecided"
    whole = continue_from(P, [R(*A, 0, 2)], objects, None)
    assert isinstance(whole, TakeOver)
    assert [each.last_offset for each in whole.aborted] == [3, 4, 7]
    assert narrowed(P, whole, tiered(4)).aborted == taken.aborted


def test_an_aborted_transaction_before_the_state_of_its_section_is_known() -> None:
    """The state of object 1 came with its second batch. Object 0 has the state that the first one needs."""
    sent = [batch(0, epoch=1, producer=7, sequence=0, transactional=True), marker(1, 7, aborted=True, epoch=1)]
    sent.append(batch(2, epoch=1))
    fields = [fields_of(sent[0]), fields_of(sent[1], marker=0), fields_of(sent[2])]
    first = _object_with(0, sent[:1], fields[:1], empty_state())
    second = _object_with(1, sent[1:], fields[1:], _state(fields[:2], 2))
    taken = continue_from(P, [R(*A, 0, 1)], {A: {0: first, 1: second}}, tiered(1))
    assert isinstance(taken, TakeOver)
    assert [each.last_offset for each in taken.aborted] == [1]
    with pytest.raises(CorruptionError, match="names object 0 for the state"):
        continue_from(P, [R(*A, 0, 1)], {A: {1: second}}, tiered(1))


def test_a_state_object_that_is_gone_is_damage() -> None:
    section = SectionDraft(P, [batch(4, epoch=1)], [fields_of(batch(4, epoch=1))], 0, None)
    with pytest.raises(CorruptionError, match="names object 0 for the state"):
        continue_from(P, [R(*A, 0, 1)], {A: {1: object_of(A, 1, section)}}, tiered(4))


def test_a_state_that_was_trimmed_asks_for_the_manifest() -> None:
    """A prefix was trimmed, so the last section is there and its state is not: everything is tiered, and no damage."""
    objects = {A: {2: log_of(A, 0, [4], [5], [6])[2]}}
    assert isinstance(continue_from(P, [R(*A, 0, 2)], objects, None), NeedsManifest)
    assert continue_from(P, [R(*A, 0, 2)], objects, tiered(7)) == TakeOver(Offset(7), None, None, ())


def test_sections_in_front_whose_state_was_trimmed_are_left_out() -> None:
    log = log_of(A, 0, [4], [5])
    log[2] = object_of(A, 2, draft(P, [batch(6, epoch=1)], 2))
    del log[0]
    taken = continue_from(P, [R(*A, 0, 2)], {A: log}, None)
    assert isinstance(taken, TakeOver)
    assert ([piece.number for piece in taken.pieces], taken.end_offset) == ([2], 7)


def test_one_leadership_may_have_several_ranges() -> None:
    """To object, to replicas, and to object again: the same log and leader epoch. The second range may begin too low."""
    log = log_of(A, 0, [0], [1], [], [])
    log.update(log_of(A, 4, [7], [8]))
    for first in (4, 2, 1, 0):
        ranges = [R(*A, 0, 1), R(*A, first, 5)]
        taken = continue_from(P, ranges, {A: log}, None)
        assert isinstance(taken, TakeOver)
        assert [piece.number for piece in taken.pieces] == [4, 5], "what is below a gap is tiered"
        taken = continue_from(P, ranges, {A: log}, tiered(8))
        assert isinstance(taken, TakeOver)
        assert ([piece.number for piece in taken.pieces], taken.end_offset) == ([5], 9)
        assert taken.producers is not None


def test_producers_are_known_though_all_records_were_deleted() -> None:
    """DeleteRecords up to the high watermark moves the log start, and nothing is tiered: the last section has what is known."""
    sent = batch(3, epoch=1, producer=7, sequence=0)
    only = SectionDraft(P, [sent], [fields_of(sent)], 0, _state([], 3))
    ranges, objects = [R(*A, 0, 0)], {A: {0: object_of(A, 0, only)}}
    taken = continue_from(P, ranges, objects, tiered(1, log_start=4))
    assert isinstance(taken, TakeOver)
    assert (taken.end_offset, taken.pieces, taken.leader_epochs) == (4, (), ((1, 3),))
    assert taken.producers is not None
    assert set(taken.producers.entries) == {7}
    assert not ranges_are_done(taken.end_offset, tiered(1, log_start=4), own_section=False)
    assert ranges_are_done(taken.end_offset, tiered(1, log_start=4), own_section=True)
    assert ranges_are_done(taken.end_offset, tiered(4), own_section=False)
    assert not ranges_are_done(taken.end_offset, tiered(3, log_start=3), own_section=True)


def test_producers_are_not_known_any_more_if_their_state_went_after_all_records_were_deleted() -> None:
    log = log_of(A, 0, [3], [4])
    del log[0]
    assert continue_from(P, [R(*A, 0, 1)], {A: log}, tiered(1, log_start=5)) == TakeOver(Offset(5), None, None, ())
    with pytest.raises(CorruptionError, match="names object 0 for the state"):
        continue_from(P, [R(*A, 0, 1)], {A: log}, tiered(1, log_start=4))


def test_what_the_manifest_says_later_narrows_what_is_read_and_shows_gaps() -> None:
    log = log_of(A, 0, [2, 3], [4], [5])
    taken = continue_from(P, [R(*A, 0, 2)], {A: log}, None)
    assert isinstance(taken, TakeOver)
    assert [piece.number for piece in narrowed(P, taken, tiered(3)).pieces] == [0, 1, 2]
    assert [piece.number for piece in narrowed(P, taken, tiered(4)).pieces] == [1, 2]
    assert narrowed(P, taken, tiered(0, log_start=6)).pieces == ()
    with pytest.raises(CorruptionError, match="offset 1 to 2 are neither tiered"):
        narrowed(P, taken, tiered(1))
    with pytest.raises(CorruptionError, match="offset 5 to 6 are neither tiered"):
        narrowed(P, replace(taken, pieces=taken.pieces[:2]), tiered(5))


def test_a_state_is_restored_as_it_was_captured() -> None:
    fields = [
        fields_of(batch(number, epoch=number // 3, producer=7 + number % 2, sequence=number // 2))
        for number in range(9)
    ]
    producers, epochs = ProducerStates(), LeaderEpochs()
    replay(producers, epochs, fields)
    state = captured(producers, epochs.entries(), Offset(9))
    again, lineage = restored(state)
    assert captured(again, lineage.entries(), Offset(9)) == state
    assert {key: entry.batches for key, entry in again.entries.items()} == {
        key: entry.batches for key, entry in producers.entries.items()
    }


def test_a_state_that_would_be_too_long_loses_older_batches_first_and_then_silent_producers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producers = ProducerStates()
    for producer_id in range(20):
        for sequence in range(3):
            timestamp = 1000 + producer_id
            producers.apply(
                producer_id, 0, sequence, 100 * producer_id + sequence, 100 * producer_id + sequence, timestamp, 0
            )
    producers.apply(0, 0, 3, 2500, 2500, 1000, 1)  # the most silent one has an open transaction
    whole = captured(producers, (), Offset(9000))
    assert len(whole.older) == 41
    assert captured(producers, (), Offset(9000), state_bytes=20 * 46 + 41 * 40).older == whole.older
    shorter = captured(producers, (), Offset(9000), state_bytes=20 * 46 + 41 * 40 - 1)
    assert (shorter.older, shorter.snapshot) == ((), whole.snapshot)
    few, _ = restored(captured(producers, (), Offset(9000), state_bytes=5 * 46))
    assert set(few.entries) == {0, 16, 17, 18, 19}
    assert few.open_transactions == {0: 2500}
    none, _ = restored(captured(producers, (), Offset(9000), state_bytes=0))
    assert set(none.entries) == {0}
    monkeypatch.setattr("app.wal.states.WAL_STATE_BYTES_MAX", 45)
    with pytest.raises(LimitExceeded, match="1 open transactions"):
        captured(producers, (), Offset(9000), state_bytes=0)


# --- local bytes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "epochs", "kept"),
    [
        (20, [(1, 0), (2, 6)], 10),  # bytes past the end are cut
        (20, [(1, 0), (2, 6), (3, 12)], 10),
        (10, [(1, 0), (2, 6)], 10),
        (9, [(1, 0), (2, 6)], 9),  # it lacks records, and what it has is theirs
        (9, [(1, 0), (2, 7)], None),
        (0, [], 0),
        (20, [(1, 0)], None),  # another history
        (20, [(1, 0), (2, 5)], None),
    ],
)
def test_local_bytes_stay_only_up_to_the_end_and_of_the_same_history(
    end: int, epochs: list[tuple[int, int]], kept: int | None
) -> None:
    lineage = (EpochStart(LeaderEpoch(1), Offset(0)), EpochStart(LeaderEpoch(2), Offset(6)))
    taken = TakeOver(Offset(10), lineage, ProducerStates(), ())
    local = [EpochStart(LeaderEpoch(epoch), Offset(start)) for epoch, start in epochs]
    assert local_end(Offset(0), Offset(end), local, taken) == kept


def test_only_ranges_that_have_the_first_record_make_a_lost_manifest_harmless() -> None:
    objects = {A: log_of(A, 0, [], [0, 1], [2]), B: log_of(B, 0, [3], epoch=2)}
    assert begins_at_zero(P, [R(*A, 0, 2), R(*B, 0, 0)], objects)
    assert not begins_at_zero(P, [R(*B, 0, 0)], objects)
    assert not begins_at_zero(P, [R(*A, 2, 2), R(*B, 0, 0)], objects)
    assert not begins_at_zero(Q, [], objects)
    assert not begins_at_zero(P, [R(*A, 0, 0)], objects)
