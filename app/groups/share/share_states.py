"""The way to the stored states of share-partitions, wherever their share coordinator is.

The share coordinator of this broker is asked directly, without a request. Others are asked with Kafka's requests (keys 83 to 87),
many share-partitions at once. The image of the cluster says which broker is the coordinator.

Tests: ``tests/groups/test_share_leader.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from app.coordinator.topics import SHARE_GROUP_STATE, partition_for
from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, RequestRejected, kafka_code
from app.core.turns import Portion
from app.core.units import BrokerId
from app.groups.share.core.share_state import ShareKey
from app.groups.share.core.share_state_wire import Asked, StateAnswer, Write, from_response, to_request
from app.metadata.image.image import BrokerImage
from app.metadata.peers.control import NotSent
from app.metadata.view.view import ClusterView
from app.wire.apikeys import ApiKey

NOT_YET: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""The state cannot be read or written now; another coordinator may be able to, soon."""
REQUEST_STATES_MAX: Final = 500
"""States in one request."""
REQUEST_RUNS_MAX: Final = 5_000
"""Runs of the states of one request, if it has several states. A request is encoded in one turn of the loop. A request of
more than ``REQUEST_ELEMENTS_MAX`` elements is refused."""
RETRY_S: Final = 0.05
"""Pause before the coordinator is looked for again."""


class StateLink(Protocol):
    """Connections to share coordinators on other brokers."""

    async def share_states(self, to: BrokerImage, key: ApiKey, message: Any) -> Any:
        """Send one of the requests 83 to 87 and return its response. Raises: NotSent; BrokerUnavailable (it may have been carried
        out, or still be); ProtocolError."""
        ...


class ShareStates:
    """Asks share coordinators."""

    def __init__(
        self,
        cluster: ClusterView,
        broker_id: BrokerId,
        here: Callable[[Asked], StateAnswer | Awaitable[StateAnswer]],
        link: StateLink | None,
    ) -> None:
        """``here`` asks the share coordinator of this broker; it raises RequestRejected. Without ``link`` this broker is alone."""
        self._cluster = cluster
        self._broker_id = broker_id
        self._here = here
        self._link = link

    def place_of(self, key: ShareKey) -> BrokerId | None:
        """The broker that is the share coordinator of a share-partition, as far as this one knows. None if there is none."""
        topic = self._cluster.image.topic(SHARE_GROUP_STATE.name)
        if topic is None:
            return None
        leader = topic.partitions[partition_for(key.name, len(topic.partitions))].leader
        return leader if leader >= 0 else None

    @property
    def has_others(self) -> bool:
        """Whether the coordinator may be on another broker."""
        return self._link is not None

    def is_here(self, key: ShareKey) -> bool:
        """Whether this broker is the share coordinator."""
        return self.place_of(key) == self._broker_id

    async def ask(
        self, asked: Sequence[Asked], *, timeout_s: float, again_on: frozenset[ErrorCode] = NOT_YET
    ) -> list[StateAnswer]:
        """As ``ask_once``, again and again for ``timeout_s`` while coordinators are not available. It must be harmless to carry
        out the requests twice."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        answers = await self.ask_once(asked)
        while True:
            again = [at for at, answer in enumerate(answers) if answer.error in again_on or answer.is_lost]
            if not again or asyncio.get_running_loop().time() + RETRY_S > deadline:
                return answers
            await asyncio.sleep(RETRY_S)
            for at, answer in zip(again, await self.ask_once([asked[at] for at in again]), strict=True):
                answers[at] = answer

    async def ask_once(self, asked: Sequence[Asked]) -> list[StateAnswer]:
        """Ask the coordinators, all at the same time. All that is asked is of one kind. Does not raise.

        Works in portions (INV-15). A request has so few states and runs that it can be encoded within one.
        """
        answers: list[StateAnswer] = [_NOBODY] * len(asked)
        waiting: list[tuple[int, Awaitable[StateAnswer]]] = []
        elsewhere: dict[tuple[BrokerId, str], list[int]] = {}
        portion = Portion()
        for at, one in enumerate(asked):
            if portion.spent():
                await portion.rest()
            place = self.place_of(one.key)
            if place == self._broker_id:
                found = self._ask_here(one)
                if isinstance(found, StateAnswer):
                    answers[at] = found
                else:
                    waiting.append((at, found))
            elif place is not None:
                elsewhere.setdefault((place, one.key.group_id), []).append(at)
        if elsewhere:
            async with asyncio.TaskGroup() as tasks:
                for (place, group_id), all_at in elsewhere.items():
                    for part in _parts(asked, all_at):
                        tasks.create_task(self._ask_there(place, group_id, asked, part, answers))
                        if len(part) == REQUEST_STATES_MAX or portion.spent():
                            await portion.rest()  # the task makes its request in the next turn
        for at, later in waiting:
            answers[at] = await _answer_of(later)
        return answers

    def _ask_here(self, one: Asked) -> StateAnswer | Awaitable[StateAnswer]:
        try:
            return self._here(one)
        except RequestRejected as error:
            return StateAnswer(error.code, str(error))

    async def _ask_there(
        self, place: BrokerId, group_id: str, asked: Sequence[Asked], at: Sequence[int], answers: list[StateAnswer]
    ) -> None:
        wanted = [asked[each] for each in at]
        for each, answer in zip(at, await self._sent(place, group_id, wanted), strict=True):
            answers[each] = answer

    async def _sent(self, place: BrokerId, group_id: str, asked: Sequence[Asked]) -> list[StateAnswer]:
        broker = self._cluster.image.brokers.get(place)
        if self._link is None or broker is None:
            return [_NOBODY] * len(asked)
        key, message = to_request(group_id, asked)
        try:
            return from_response(asked, await self._link.share_states(broker, key, message))
        except NotSent as error:
            failed = StateAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
        except BrokerUnavailable as error:
            failed = StateAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error), is_lost=True)
        except FirnError as error:
            failed = StateAnswer(kafka_code(error), str(error), is_lost=True)
        return [failed] * len(asked)


_NOBODY: Final = StateAnswer(
    ErrorCode.COORDINATOR_NOT_AVAILABLE, f"A partition of {SHARE_GROUP_STATE.name} has no leader now. Try again later."
)


def _parts(asked: Sequence[Asked], at: Sequence[int]) -> Iterator[list[int]]:
    """Split ``at``, the places in ``asked`` that concern one coordinator, into parts that each fit into a request."""
    part: list[int] = []
    runs = 0
    for each in at:
        one = asked[each]
        more = len(one.runs) if isinstance(one, Write) else 0
        if part and (len(part) == REQUEST_STATES_MAX or runs + more > REQUEST_RUNS_MAX):
            yield part
            part, runs = [], 0
        part.append(each)
        runs += more
    if part:
        yield part


async def _answer_of(later: Awaitable[StateAnswer]) -> StateAnswer:
    try:
        return await later
    except RequestRejected as error:
        return StateAnswer(error.code, str(error))
