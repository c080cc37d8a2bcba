"""Producer ids on three real brokers in one loop: whoever asks is given one while the controller goes and comes (ADR 0023, F)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from app.broker.peers.control_link import KafkaControlLink
from app.core.errors import ErrorCode
from app.handlers.state import producer_id_block
from app.metadata.changes import topic_changes as changes
from app.metadata.image.image import BrokerImage
from app.metadata.peers.control import ChangeRequest, ChangeResponse
from app.wire.apikeys import ApiKey
from app.wire.apis.init_producer_id import InitProducerIdRequest
from tests.handlers.conversation import talk
from tests.support.broker import RunningBroker
from tests.support.several import member, unfenced
from tests.support.waiting import until

WAIT_S = 60


class Asker:
    """Asks one broker for producer ids, again and again."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker
        self.given: list[int] = []
        self.refused: set[ErrorCode] = set()

    async def run(self) -> None:
        async with talk(self._broker.port) as client:
            while True:
                answer = await client.ask(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id=None))
                if answer.error_code:
                    self.refused.add(ErrorCode(answer.error_code))
                else:
                    self.given.append(answer.producer_id)
                await asyncio.sleep(0.01)


@pytest.mark.ci
@pytest.mark.parametrize("mute", [False, True])
async def test_ids_are_given_when_the_controller_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mute: bool
) -> None:
    """Also by the broker that becomes the controller while somebody waits there. ``mute``: the old one never answers."""
    monkeypatch.setattr(changes, "PRODUCER_ID_BLOCK", 1)  # every id is asked for
    monkeypatch.setattr(producer_id_block, "TAKEN_WITHIN_S", 10 * WAIT_S)
    muted = asyncio.Event()

    class Link(KafkaControlLink):
        async def change(self, to: BrokerImage, asked: ChangeRequest) -> ChangeResponse:
            if muted.is_set() and to.broker_id == 1:
                await asyncio.Event().wait()
            return await super().change(to, asked)

    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(member(tmp_path, node_id, new_link=Link)) for node_id in (1, 2, 3)]
        for broker in brokers:
            await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])
        controller, *others = brokers
        assert {broker.node.cluster.image.controller.broker_id for broker in brokers} == {1}
        askers = [Asker(broker) for broker in others]
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(asker.run()) for asker in askers]
            await until(lambda: all(len(asker.given) > 2 for asker in askers), WAIT_S)
            if mute:
                muted.set()
            await controller.kill()
            before = [len(asker.given) for asker in askers]
            await until(
                lambda: all(len(asker.given) > old + 2 for asker, old in zip(askers, before, strict=True)), WAIT_S
            )
            for task in running:
                task.cancel()
        assert others[0].node.cluster.image.controller.broker_id in (2, 3)
        assert set().union(*(asker.refused for asker in askers)) <= {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        given = [one for asker in askers for one in asker.given]
        assert len(given) == len(set(given)), "no id is given twice"
