"""Transactional ids of other coordinators: asks them whether a transaction may begin in a partition (ADR 0026, XV)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from app.coordinator.topics import TRANSACTION_STATE, partition_for
from app.core.errors import ErrorCode, FirnError, RequestRejected, kafka_code
from app.core.units import TopicPartition
from app.transactions.ending import Others
from app.transactions.link import AddAnswer, AddAsked, TransactionLink
from app.transactions.outbox import Outbox

if TYPE_CHECKING:
    from app.metadata.image.image import ClusterImage
    from app.metadata.peers.control import LookRequest, LookResponse

LATE_WAIT_S: Final = 0.5
"""How long a question about a log that has answered late may hold up its asker. The question goes on by itself."""
BEHIND: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.OPERATION_NOT_ATTEMPTED}
)
"""Refusals of a coordinator that has another image of the topics than this broker (X5)."""


class _Log(NamedTuple):
    """A partition of ``__transaction_state`` in one leadership."""

    leader: int
    partition: int


class OtherBrokers:
    """The other brokers of the cluster, as leaders and as coordinators. Keep ``run`` running, and call ``follow``."""

    def __init__(self, broker_id: int, link: TransactionLink, image: Callable[[], ClusterImage]) -> None:
        self._broker_id = broker_id
        self._image = image
        self._link = link
        self._adding: Outbox[AddAsked, AddAnswer] = Outbox(link.add_to_transactions, image)
        self._adding_late: Outbox[AddAsked, AddAnswer] = Outbox(partial(link.add_to_transactions, late=True), image)
        self._late: set[_Log] = set()
        """Logs whose coordinator said last that they store nothing in time (XV7)."""
        self._markers = Outbox(link.write_markers, image)
        self.leaders = Others(broker_id, image, self._markers)

    def follow(self, image: ClusterImage) -> None:
        self._adding.follow(image)
        self._adding_late.follow(image)
        if self._late:
            self._late = {one for one in self._late if self._log(one.partition) == one}
        self._markers.follow(image)

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._adding.run())
            tasks.create_task(self._adding_late.run())
            tasks.create_task(self._markers.run())

    def coordinator_of(self, transactional_id: str) -> int | None:
        """The other broker that coordinates the id; -1 if no broker does. None if this broker does, or if the topic does not exist
        yet."""
        log = self._log_of(transactional_id)
        return None if log is None or log.leader == self._broker_id else log.leader

    def _log_of(self, transactional_id: str) -> _Log | None:
        topic = self._image().topic(TRANSACTION_STATE.name)
        return None if topic is None else self._log(partition_for(transactional_id, len(topic.partitions)))

    def _log(self, partition: int) -> _Log | None:
        topic = self._image().topic(TRANSACTION_STATE.name)
        if topic is None or partition >= len(topic.partitions):
            return None
        return _Log(topic.partitions[partition].leader, partition)

    async def look(self, asked: LookRequest) -> list[LookResponse]:
        """Ask all other living brokers for their facts about transactions. Raises: FirnError if one does not answer."""
        image = self._image()
        brokers = [one for one in image.brokers.values() if not one.fenced and one.broker_id != self._broker_id]
        found: list[LookResponse] = []
        for broker in brokers:
            answer = await self._link.look_at_transactions(broker, asked)
            if answer.error_code:
                code = ErrorCode(answer.error_code)
                raise RequestRejected(code, f"Broker {broker.broker_id} does not say what it has: {code.name}.")
            found.append(answer)
        return found

    async def add(self, asked: AddAsked) -> AddAnswer:
        """Ask the coordinator once.

        Raises: RequestRejected with the coordinator's refusal, or COORDINATOR_NOT_AVAILABLE if it does not answer.
        """
        log = self._log_of(asked.transactional_id)
        if log is None or log.leader == self._broker_id:
            raise RequestRejected(ErrorCode.NOT_COORDINATOR, "This broker coordinates the id now.")
        coordinator = log.leader
        if coordinator < 0:
            raise RequestRejected(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The transactional id has no coordinator now.")
        try:
            answer = await self._answer(log, asked)
        except FirnError as error:
            code = kafka_code(error)
            if code is ErrorCode.NETWORK_EXCEPTION:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise RequestRejected(code, str(error)) from error
        code, target = _worst(answer.codes)
        if code is not ErrorCode.NONE:
            sentence = f"Broker {coordinator}, which coordinates the transaction, refuses {target}: {code.name}."
            raise RequestRejected(ErrorCode.COORDINATOR_NOT_AVAILABLE if code in BEHIND else code, sentence)
        return answer

    async def _answer(self, log: _Log, asked: AddAsked) -> AddAnswer:
        """Ask about a transaction of a log. Raises: FirnError."""
        late = log in self._late
        answer = (self._adding_late if late else self._adding).put(log.leader, asked)
        answer.add_done_callback(partial(self._learn, log))
        if late:
            await asyncio.wait([answer], timeout=LATE_WAIT_S)
            if not answer.done():
                raise RequestRejected(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"Broker {log.leader} stores no records of {TRANSACTION_STATE.name}-{log.partition} in time. Try again.",
                )
        return await answer

    def _learn(self, log: _Log, answer: asyncio.Future[AddAnswer]) -> None:
        """Note whether a log has answered late."""
        if answer.cancelled() or answer.exception() is not None:
            return
        if ErrorCode.COORDINATOR_NOT_AVAILABLE in answer.result().codes.values():
            self._late.add(log)
        else:
            self._late.discard(log)


def _worst(codes: Mapping[TopicPartition, ErrorCode]) -> tuple[ErrorCode, TopicPartition | None]:
    """A refusal, if there is one. That of a partition that was not even looked at says least."""
    refused = [(code is ErrorCode.OPERATION_NOT_ATTEMPTED, target, code) for target, code in codes.items() if code]
    if not refused:
        return ErrorCode.NONE, None
    _, target, code = min(refused)
    return code, target
