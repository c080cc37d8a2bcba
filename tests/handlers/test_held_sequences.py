"""Batches of idempotent producers behind one that was refused: held until it comes again, and every refusal told."""

from __future__ import annotations

import pytest

from app.core.errors import ErrorCode, RequestRejected, SequenceRefused, StorageUnavailable
from app.handlers.clients.held_sequences import HELD_MS, PLACES_MAX, HeldSequences, Sequenced, sequenced
from app.hot.producers import SEQUENCE_MASK, ProducerEntry
from tests.handlers.conversation import batch
from tests.handlers.producing import ask_to_produce

FULL = StorageUnavailable("no room")
T, P = "t", 0


def sent(sequence: int, epoch: int = 0, producer_id: int = 7) -> Sequenced:
    return Sequenced(producer_id, epoch, sequence)


def entry(last_sequence: int, epoch: int = 0) -> ProducerEntry:
    made = ProducerEntry(epoch)
    made.last_sequence = last_sequence
    return made


def missing(sequence: int, epoch: int = 0) -> HeldSequences:
    held = HeldSequences()
    held.refused(T, P, sent(sequence, epoch), FULL, 0)
    return held


def test_later_batches_get_the_same_error_until_the_missing_one_is_appended() -> None:
    held = missing(5)
    for sequence in (6, 7, 100):
        error = held.held(T, P, sent(sequence), entry(4), 0)
        assert isinstance(error, StorageUnavailable)
        assert str(error) == str(FULL)
        held.refused(T, P, sent(sequence), error, 1)
    assert held.held(T, P, sent(5), entry(4), 0) is None
    held.appended(T, P, sent(5))
    assert held.is_empty
    assert held.held(T, P, sent(6), entry(5), 0) is None


def test_nothing_is_appended_behind_a_gap_of_a_producer_that_the_log_does_not_know() -> None:
    assert missing(0).held(T, P, sent(1), None, 0) is not None


def test_earlier_batches_and_those_of_others_are_judged_as_ever() -> None:
    held = missing(5)
    assert held.held(T, P, sent(4), entry(4), 0) is None
    assert held.held(T, P, sent(6, producer_id=8), None, 0) is None
    assert held.held(T, 1, sent(6), entry(4), 0) is None
    assert held.held("u", P, sent(6), entry(4), 0) is None
    assert held.held(T, P, sent(6), entry(4), 0) is not None


def test_the_first_of_several_refused_batches_is_the_missing_one() -> None:
    held = missing(5)
    held.refused(T, P, sent(6), FULL, 0)
    held.refused(T, P, sent(3), FULL, 0)
    assert held.held(T, P, sent(5), entry(2), 0) is not None
    assert held.held(T, P, sent(3), entry(2), 0) is None


def test_sequences_go_on_at_0_after_the_last_one() -> None:
    held = missing(SEQUENCE_MASK)
    assert held.held(T, P, sent(0), entry(SEQUENCE_MASK - 1), 0) is not None
    assert held.held(T, P, sent(SEQUENCE_MASK - 1), entry(SEQUENCE_MASK - 1), 0) is None
    assert held.held(T, P, sent(1), entry(0), 0) is None, "the log has the missing one"


@pytest.mark.parametrize(
    ("later", "known", "now_ms"),
    [
        (sent(6, epoch=1), entry(4), 0),
        (sent(6), entry(5), 0),
        (sent(9), entry(8), 0),
        (sent(6), entry(4), HELD_MS),
    ],
    ids=["another epoch", "another leader has it", "another leader has more", "its client gave it up"],
)
def test_what_ends_a_wait(later: Sequenced, known: ProducerEntry, now_ms: int) -> None:
    held = missing(5)
    assert held.held(T, P, sent(6), entry(4), HELD_MS - 1) is not None
    assert held.held(T, P, later, known, now_ms) is None
    assert held.is_empty


def test_a_missing_batch_that_is_refused_for_good_is_waited_for_no_more() -> None:
    held = missing(5)
    held.refused(T, P, sent(5), RequestRejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 0)
    assert held.is_empty
    held.refused(T, P, sent(5), RequestRejected(ErrorCode.MESSAGE_TOO_LARGE), 0)
    assert held.is_empty


def test_beyond_the_limit_the_first_missing_batches_stay_and_no_later_one_stands_for_them() -> None:
    held = HeldSequences()
    for sequence in (5, 6, 7):  # three requests, each of one batch for each partition
        for partition in range(PLACES_MAX + 100):
            error = held.held(T, partition, sent(sequence), None, 0)
            assert (error is not None) == (sequence > 5 and partition < PLACES_MAX)
            held.refused(T, partition, sent(sequence), FULL, 0)
    assert held.held(T, 0, sent(6), None, 0) is not None
    assert held.held(T, PLACES_MAX, sent(6), None, 0) is None


def test_batches_that_were_given_up_are_forgotten_although_nothing_more_comes_for_them() -> None:
    held = missing(5)
    held.refused("u", P, sent(1), FULL, HELD_MS // 2)
    held.forget_old(HELD_MS)
    assert held.held(T, P, sent(6), None, HELD_MS) is None
    assert held.held("u", P, sent(2), None, HELD_MS) is not None
    held.forget_old(2 * HELD_MS)
    assert held.is_empty


def test_only_batches_with_a_sequence_are_looked_at() -> None:
    assert sequenced(None) is None
    assert sequenced(memoryview(b"x" * 40)) is None
    assert sequenced(memoryview(batch(1))) is None
    made = batch(2, producer_id=7, producer_epoch=3, base_sequence=9)
    assert sequenced(memoryview(made)) == (7, 3, 9)


@pytest.mark.parametrize("version", [9, 13])
async def test_a_batch_behind_a_refused_one_is_not_appended_on_that_connection(start, connect, version):
    bench = await start()
    log = bench.logs.add("t")
    client, other = await connect(bench), await connect(bench)
    topic = log.topic_id if version >= 13 else "t"

    async def send(sequence, by=client):
        records = batch(1, producer_id=7, producer_epoch=0, base_sequence=sequence)
        return (await ask_to_produce(by, version, topic, records)).error_code

    for sequence in range(3):  # the last ones go the short way
        assert await send(sequence) == 0
    log.refuse_with = RequestRejected(ErrorCode.NOT_ENOUGH_REPLICAS, "too few")
    assert await send(3) == ErrorCode.NOT_ENOUGH_REPLICAS
    log.refuse_with = None
    for sequence in (4, 5):
        assert await send(sequence) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert log.log_end_offset == 3
    assert bench.counter("firn_refused_sequences_total", reason="held") == 2
    assert await send(9, other) == 0, "another connection is judged by the log"
    for sequence in (3, 4, 5):
        assert await send(sequence) == 0
    assert log.log_end_offset == 7


async def test_every_refused_sequence_is_counted_and_told_with_what_was_expected(start, connect):
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    log.refuse_with = SequenceRefused(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        "a gap",
        reason="out_of_order",
        producer_id=7,
        epoch=1,
        known_epoch=1,
        sequence=516,
        expected=513,
    )
    for _ in range(200):
        found = await ask_to_produce(client, 9, "t", batch(1, producer_id=7, producer_epoch=1, base_sequence=516))
        assert (found.error_code, found.error_message) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a gap")
    assert bench.counter("firn_refused_sequences_total", reason="out_of_order") == 200
    told = [line for line in bench.lines if "refused a batch of producer" in line]
    assert told[0] == (
        "t-0 refused a batch of producer 7: epoch 1, sequence 516; the log is at epoch 1 and expects sequence 513 (out_of_order)"
    )
    assert len(told) < 50
