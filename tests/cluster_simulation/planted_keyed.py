"""Faults planted into keyed requests: one rule of ADR 0043 taken back at a time.

``tests/exactly_once/test_model.py`` takes back others, whose schedules are too rare for whole brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Final

import pytest

from app.core.errors import ErrorCode
from app.exactly_once.attempt import Aborted, Attempt, Step, Stored
from app.exactly_once.coordinator import RequestCoordinator
from app.exactly_once.records import TOPIC, RequestKey
from app.exactly_once.shard import KeyTaken, Open, RequestShard
from app.http.keyed.producing import _Try
from app.metadata.image.records import LEVEL_MAX
from app.transactions.markers import Marker, MarkerWriter
from tests.cluster_simulation import keyed
from tests.cluster_simulation.objects import ObjectShape
from tests.cluster_simulation.planted import Planted


def committed_results_alone_count(patch: pytest.MonkeyPatch) -> None:
    accept = RequestShard.accept

    def blind(shard: RequestShard, turn: Any, request: RequestKey, result: Any, *rest: Any) -> Any:
        found = shard._open.get(request)
        if found is not None and found.try_id != result.try_id:
            del shard._open[request]
        return accept(shard, turn, request, result, *rest)

    patch.setattr(RequestShard, "accept", blind)


def open_results_are_forgotten_by_the_next_leader(patch: pytest.MonkeyPatch) -> None:
    loaded = RequestShard.loaded

    def forgetful(shard: RequestShard, turn: Any) -> None:
        shard._open.clear()
        loaded(shard, turn)

    patch.setattr(RequestShard, "loaded", forgetful)


def the_look_decides(patch: pytest.MonkeyPatch) -> None:
    accept = RequestShard.accept

    def trusting(shard: RequestShard, turn: Any, request: RequestKey, result: Any, producer: Any, _others: Any) -> Any:
        shard._open.pop(request, None)
        known = shard._index.find(request.index_hash)
        return accept(shard, turn, request, result, producer, known)

    patch.setattr(RequestShard, "accept", trusting)


def own_repeats_are_refused(patch: pytest.MonkeyPatch) -> None:
    accept = RequestShard.accept

    def refusing(shard: RequestShard, turn: Any, request: RequestKey, *rest: Any) -> Any:
        if request in shard._open:
            raise KeyTaken(ErrorCode.CONCURRENT_TRANSACTIONS, "The key has a result that is open.")
        return accept(shard, turn, request, *rest)

    patch.setattr(RequestShard, "accept", refusing)


def any_try_is_a_repeat(patch: pytest.MonkeyPatch) -> None:
    accept = RequestShard.accept

    def confused(shard: RequestShard, turn: Any, request: RequestKey, result: Any, *rest: Any) -> Any:
        found = shard._open.get(request)
        if found is not None:
            shard._open[request] = Open(found.offset, result.try_id, found.size_bytes)
        return accept(shard, turn, request, result, *rest)

    patch.setattr(RequestShard, "accept", confused)


def _believing(outcome_of: Callable[[Attempt], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        ended = Attempt.ended

        def believes(attempt: Attempt, *, success: bool) -> None:
            if attempt.step is Step.COMMIT and not success:
                attempt._done(outcome_of(attempt))
            else:
                ended(attempt, success=success)

        patch.setattr(Attempt, "ended", believes)

    return plant


def _stored(attempt: Attempt) -> Stored:
    assert attempt.result is not None
    return Stored(attempt.result)


def failed_commits_count_as_aborted(patch: pytest.MonkeyPatch) -> None:
    _believing(lambda _attempt: Aborted(None))(patch)
    patch.setattr(keyed, "AT_ONCE_FROM", keyed.PROCESSES)  # as below


def failed_commits_count_as_committed(patch: pytest.MonkeyPatch) -> None:
    _believing(_stored)(patch)
    patch.setattr(keyed, "AT_ONCE_FROM", keyed.PROCESSES)  # a process that commits by itself is told of the commit


def unanswered_tries_count_as_aborted(patch: pytest.MonkeyPatch) -> None:
    async def no_abort(one: _Try, *, commit: bool) -> None:
        attempt = one._attempt
        if commit or not attempt.lost:
            await end(one, commit=commit)
            return
        assert one._transaction is not None
        assert one._new is not None
        one._producer.give_back(one._transaction.transactional_id, None, one._new.timeout_ms)
        attempt.ended(success=True)

    end = _Try._end
    patch.setattr(_Try, "_end", no_abort)


def lost_markers_are_not_decided(patch: pytest.MonkeyPatch) -> None:
    async def nothing(_coordinator: RequestCoordinator) -> None:
        return

    patch.setattr(RequestCoordinator, "decide_abandoned", nothing)
    markers_of_results_are_lost(patch)


def partitions_join_before_the_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RequestCoordinator, "check_producer", lambda *_: None)
    markers_of_results_are_lost(patch, one_of=2, at_most=40)


def markers_of_results_are_lost(patch: pytest.MonkeyPatch, *, one_of: int = 8, at_most: int = 8) -> None:
    """No planted fault: some markers for results are lost, as with the end of a log. Those that decide a result come through."""
    write, lost = MarkerWriter.write, count()

    def losing(writer: MarkerWriter, marker: Marker, partition: Any, *rest: Any) -> Any:
        of_coordinator = marker.coordinator >= 0
        if partition.topic == TOPIC and of_coordinator and sum(marker.identity) % one_of == 0 and next(lost) < at_most:
            return None
        return write(writer, marker, partition, *rest)

    patch.setattr(MarkerWriter, "write", losing)


KEYED: Final = {
    "seconds": 10.0,
    "pause_s": 1.5,
    "brokers": 3,
    "factor": 3,
    "min_in_sync": 2,
    "partitions": 2,
    "pulses": True,
    "tiered": False,
    "unclean": False,
    "producers": 1,
    "actors": ("keyed",),
}
"""The shape of a run with keyed requests, which need a cluster of the newest level."""
_MOVES: Final = KEYED | {"pause_s": 0.5}
OBJECTS: Final = KEYED | {
    "pause_s": 1.0,
    "objects": ObjectShape(topics=0, alone=True, internal=True, linger_ms=50, level=LEVEL_MAX),
}
"""As ``KEYED``, with all records and results of object durability. At the end all disks are lost at once."""
CUT_OFF: Final = KEYED | {"seconds": 30.0, "pause_s": 3.0, "producers": 0}

PLANTED: Final[dict[str, Planted]] = {
    "EO2 committed results alone count": Planted(
        committed_results_alone_count, "once", 12, ("results move", "slow network"), _MOVES, first=10
    ),
    "EO2 the next leader forgets open results": Planted(
        open_results_are_forgotten_by_the_next_leader, "once", 6, ("results move", "slow network"), _MOVES
    ),
    "EO2 the look decides": Planted(the_look_decides, "once", 6, ("results move", "slow network"), _MOVES),
    "EO3 own repeats are refused": Planted(own_repeats_are_refused, "EO3", 3, ("kill leader",), KEYED),
    "EO3 any try is a repeat": Planted(any_try_is_a_repeat, "once", 6, ("results move", "slow network"), _MOVES),
    "EO5 a failed commit counts as aborted": Planted(
        failed_commits_count_as_aborted, "EO5", 14, ("http cut off",), CUT_OFF, first=4
    ),
    "EO5 a failed commit counts as aborted, and disks are lost": Planted(
        failed_commits_count_as_aborted, "EO5", 8, ("wal away", "disks lost"), OBJECTS
    ),
    "EO5 a failed commit counts as committed": Planted(
        failed_commits_count_as_committed, "once", 12, ("http cut off",), CUT_OFF, first=12
    ),
    "EO19 a try without an answer counts as aborted": Planted(
        unanswered_tries_count_as_aborted, "EO5", 4, ("leaders gather", "slow network"), _MOVES
    ),
    "EO11 partitions join before the check": Planted(
        partitions_join_before_the_check, "once", 10, ("kill leader",), KEYED
    ),
    "EO11 lost markers are not decided": Planted(lost_markers_are_not_decided, "EO11", 2, ("kill leader",), KEYED),
}
"""By name. Each is run with seeds from its ``first`` on, until one finds it."""
