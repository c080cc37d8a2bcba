"""What of a read is for members of a share group."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.units import Offset, ProducerEpoch, ProducerId, TimestampMs
from app.handlers.apis.share_fetch import Read, sorted_out
from app.hot.indexes import AbortedTransaction
from app.records.builder import build_batch
from app.records.control import ControlType, build_marker

NOBODY = -1
EPOCH = ProducerEpoch(0)


class Log:
    """Batches of some producers, and what becomes of each record."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.end = 0
        self.for_members: list[int] = []
        self.aborted: list[AbortedTransaction] = []
        self._open: dict[int, list[int]] = {}

    def write(self, producer: int, count: int) -> None:
        is_transactional = producer != NOBODY
        (self._open.setdefault(producer, []) if is_transactional else self.for_members).extend(
            range(self.end, self.end + count)
        )
        self.data += build_batch(
            [(TimestampMs(5), None, b"x", ())] * count,
            base_offset=Offset(self.end),
            producer_id=ProducerId(producer),
            producer_epoch=EPOCH if is_transactional else ProducerEpoch(-1),
            transactional=is_transactional,
        )
        self.end += count

    def finish(self, producer: int, *, commits: bool) -> None:
        written = self._open.pop(producer, [])
        self.data += build_marker(
            ControlType.COMMIT if commits else ControlType.ABORT,
            producer_id=ProducerId(producer),
            producer_epoch=EPOCH,
            coordinator_epoch=0,
            timestamp=TimestampMs(5),
            base_offset=Offset(self.end),
        )
        if commits:
            self.for_members += written
        elif written:
            self.aborted.append(
                AbortedTransaction(ProducerId(producer), Offset(written[0]), Offset(self.end), Offset(self.end))
            )
        self.end += 1


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([NOBODY, 1, 2, 3]), st.integers(0, 3), st.booleans()), max_size=40),
    st.integers(0, 30),
)
def test_every_offset_is_for_members_or_for_nobody_and_aborted_ones_are_for_nobody(
    steps: list[tuple[int, int, bool]], offset: int
) -> None:
    log = Log()
    for producer, count, commits in steps:
        if count or producer == NOBODY:
            log.write(producer, count or 1)
        else:
            log.finish(producer, commits=commits)
    for producer in (1, 2, 3):
        log.finish(producer, commits=producer == 1)  # what is read lies below the last stable offset
    batches, nobody = sorted_out(Read(bytes(log.data), log.aborted), offset)
    found = sorted(each for first, end in batches for each in range(first, end))
    assert found == sorted(each for each in log.for_members if each >= offset)
    covered = found + [each for first, end in nobody for each in range(first, end)]
    assert sorted(covered) == list(range(offset, log.end))
