"""The questions to a share coordinator about states of share-partitions, and Kafka's five requests for them (keys 83 to 87). Pure.

The coordinator of the same broker is asked without a request, by the same names.

Tests: ``tests/groups/test_share_leader.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from app.core.errors import ErrorCode, RequestRejected
from app.groups.share.core.share_state import ANY_EPOCH, NOT_BEGUN, ShareKey, ShareState
from app.groups.share.core.share_window import RecordState, Run
from app.wire.apikeys import ApiKey
from app.wire.apis import delete_share_group_state as delete
from app.wire.apis import initialize_share_group_state as initialize
from app.wire.apis import read_share_group_state as read
from app.wire.apis import read_share_group_state_summary as summary
from app.wire.apis import write_share_group_state as write

T = TypeVar("T")

DELIVERY_COUNT_MAX: Final = 32_767
STORED: Final = (RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


class Initialize(NamedTuple):
    """Create a state, or set it anew."""

    key: ShareKey
    state_epoch: int
    start: int


class Read(NamedTuple):
    """Read a state as leader of the topic's partition."""

    key: ShareKey
    leader_epoch: int


class Write(NamedTuple):
    """Store the progress from the leader."""

    key: ShareKey
    state_epoch: int
    leader_epoch: int
    start: int
    runs: tuple[Run, ...]
    """Changed runs in order."""
    done_count: int


class Delete(NamedTuple):
    """Delete a state."""

    key: ShareKey


class Summarize(NamedTuple):
    """Read a state without its runs."""

    key: ShareKey


Asked = Initialize | Read | Write | Delete | Summarize


class StateAnswer(NamedTuple):
    """The answer about one state."""

    error: ErrorCode = ErrorCode.NONE
    sentence: str | None = None
    state: ShareState | None = None
    """If it was read. A summary has no runs; its state epoch is ``ANY_EPOCH`` if there is no state."""
    done_count: int = 0
    """Number of finished records after the start."""
    is_lost: bool = False
    """Whether no answer came, so that the request may still be carried out later."""


NO_STATE: Final = ShareState(ANY_EPOCH, 0, NOT_BEGUN, ())

# --- as a broker that asks --------------------------------------------------------------------------------------------


def to_request(group_id: str, asked: Sequence[Asked]) -> tuple[ApiKey, Any]:
    """Key and message of one request. All that is asked is of one kind and of one group."""
    match asked[0]:
        case Initialize():
            return ApiKey.INITIALIZE_SHARE_GROUP_STATE, initialize.InitializeShareGroupStateRequest(
                group_id, _by_topic(asked, _initialize, initialize.InitializeStateData)
            )
        case Read():
            return ApiKey.READ_SHARE_GROUP_STATE, read.ReadShareGroupStateRequest(
                group_id, _by_topic(asked, _read, read.ReadStateData)
            )
        case Write():
            return ApiKey.WRITE_SHARE_GROUP_STATE, write.WriteShareGroupStateRequest(
                group_id, _by_topic(asked, _write, write.WriteStateData)
            )
        case Delete():
            return ApiKey.DELETE_SHARE_GROUP_STATE, delete.DeleteShareGroupStateRequest(
                group_id, _by_topic(asked, lambda one: delete.PartitionData(one.key.partition), delete.DeleteStateData)
            )
        case Summarize():
            return ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, summary.ReadShareGroupStateSummaryRequest(
                group_id,
                _by_topic(
                    asked, lambda one: summary.PartitionData(one.key.partition, -1), summary.ReadStateSummaryData
                ),
            )


def _initialize(one: Any) -> initialize.PartitionData:
    return initialize.PartitionData(one.key.partition, one.state_epoch, one.start)


def _read(one: Any) -> read.PartitionData:
    return read.PartitionData(one.key.partition, one.leader_epoch)


def _write(one: Any) -> write.PartitionData:
    batches = [write.StateBatch(run.first, run.end - 1, run.state, run.delivery_count) for run in one.runs]
    return write.PartitionData(one.key.partition, one.state_epoch, one.leader_epoch, one.start, one.done_count, batches)


def _by_topic(
    asked: Iterable[Asked], partition: Callable[[Any], Any], topic: Callable[[UUID, list[Any]], T]
) -> list[T]:
    topics: dict[UUID, list[Any]] = {}
    for one in asked:
        topics.setdefault(one.key.topic_id, []).append(partition(one))
    return [topic(topic_id, partitions) for topic_id, partitions in topics.items()]


def from_response(asked: Sequence[Asked], message: Any) -> list[StateAnswer]:
    """The answers, in the order of ``asked``."""
    found = {(topic.topic_id, part.partition): part for topic in message.results for part in topic.partitions}
    return [_answered(one, found.get((one.key.topic_id, one.key.partition))) for one in asked]


def _answered(asked: Asked, part: Any) -> StateAnswer:
    if part is None:
        return StateAnswer(ErrorCode.UNKNOWN_SERVER_ERROR, f"Nothing was answered about {asked.key.name}.")
    if part.error_code:
        return StateAnswer(ErrorCode(part.error_code), part.error_message)
    match asked:
        case Read():
            state = ShareState(part.state_epoch, asked.leader_epoch, part.start_offset, runs_of(part.state_batches))
            return StateAnswer(state=state)
        case Summarize():
            state = ShareState(part.state_epoch, part.leader_epoch, part.start_offset, ())
            return StateAnswer(state=state, done_count=max(part.delivery_complete_count, 0))
    return StateAnswer()


# --- as the coordinator -----------------------------------------------------------------------------------------------


def from_request(message: Any, *, checks: bool = True) -> list[Asked]:
    """The questions of a request. Without ``checks``, batches are left out.

    Raises: RequestRejected INVALID_REQUEST for batches that make no sense.
    """
    asked: list[Asked] = []
    for topic in message.topics:
        for part in topic.partitions:
            key = ShareKey(message.group_id, topic.topic_id, part.partition)
            match part:
                case initialize.PartitionData():
                    asked.append(Initialize(key, part.state_epoch, part.start_offset))
                case read.PartitionData():
                    asked.append(Read(key, part.leader_epoch))
                case write.PartitionData():
                    runs, count = runs_of(part.state_batches if checks else ()), part.delivery_complete_count
                    asked.append(Write(key, part.state_epoch, part.leader_epoch, part.start_offset, runs, count))
                case delete.PartitionData():
                    asked.append(Delete(key))
                case _:
                    asked.append(Summarize(key))
    return asked


def runs_of(batches: Iterable[Any]) -> tuple[Run, ...]:
    """Runs from a peer. Raises: RequestRejected INVALID_REQUEST unless they are in order and of states that are stored."""
    runs: list[Run] = []
    end = 0
    for each in batches:
        if not (
            end <= each.first_offset <= each.last_offset
            and each.delivery_state in STORED
            and 0 <= each.delivery_count <= DELIVERY_COUNT_MAX
        ):
            raise RequestRejected(ErrorCode.INVALID_REQUEST, "The state batches make no sense.")
        end = each.last_offset + 1
        runs.append(Run(each.first_offset, end, RecordState(each.delivery_state), each.delivery_count))
    return tuple(runs)


def to_response(asked: Sequence[Asked], answers: Sequence[StateAnswer], kind: ApiKey) -> Any:
    """The response of one kind of request, from the answers to its questions."""
    pairs = list(zip(asked, answers, strict=True))
    match kind:
        case ApiKey.INITIALIZE_SHARE_GROUP_STATE:
            return initialize.InitializeShareGroupStateResponse(
                _results(pairs, initialize.PartitionResult, initialize.InitializeStateResult)
            )
        case ApiKey.READ_SHARE_GROUP_STATE:
            return read.ReadShareGroupStateResponse(_results(pairs, _read_result, read.ReadStateResult))
        case ApiKey.WRITE_SHARE_GROUP_STATE:
            return write.WriteShareGroupStateResponse(_results(pairs, write.PartitionResult, write.WriteStateResult))
        case ApiKey.DELETE_SHARE_GROUP_STATE:
            return delete.DeleteShareGroupStateResponse(
                _results(pairs, delete.PartitionResult, delete.DeleteStateResult)
            )
        case ApiKey.READ_SHARE_GROUP_STATE_SUMMARY:
            return summary.ReadShareGroupStateSummaryResponse(
                _results(pairs, _summary_result, summary.ReadStateSummaryResult)
            )
    raise AssertionError(kind)


def _results(
    pairs: Iterable[tuple[Asked, StateAnswer]], result: Callable[..., Any], topic: Callable[[UUID, list[Any]], T]
) -> list[T]:
    topics: dict[UUID, list[Any]] = {}
    for one, answer in pairs:
        made = result(one.key.partition, int(answer.error), answer.sentence)
        if answer.state is not None:
            _describe(made, answer)
        topics.setdefault(one.key.topic_id, []).append(made)
    return [topic(topic_id, results) for topic_id, results in topics.items()]


def _read_result(partition: int, code: int, sentence: str | None) -> read.PartitionResult:
    return read.PartitionResult(partition, code, sentence)


def _summary_result(partition: int, code: int, sentence: str | None) -> summary.PartitionResult:
    return summary.PartitionResult(partition, code, sentence, state_epoch=ANY_EPOCH, start_offset=NOT_BEGUN)


def _describe(made: Any, answer: StateAnswer) -> None:
    state = answer.state
    assert state is not None
    made.state_epoch, made.start_offset = state.state_epoch, state.start
    if isinstance(made, read.PartitionResult):
        made.state_batches = [
            read.StateBatch(run.first, run.end - 1, run.state, run.delivery_count) for run in state.runs
        ]
    else:
        made.leader_epoch, made.delivery_complete_count = state.leader_epoch, answer.done_count
