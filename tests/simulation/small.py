"""A topic of small segments, and its only client."""

from __future__ import annotations

from typing import Any

from app.configs import TopicConfig
from app.core.errors import ErrorCode
from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from app.wire.apis.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from app.wire.apis.delete_topics import DeleteTopicsRequest, DeleteTopicState
from app.wire.produce import encode_produce_request
from tests.simulation.actors import Actor
from tests.simulation.checkers import CRC_POSITION
from tests.simulation.history import Batch
from tests.simulation.machine import Machine
from tests.simulation.world import World

SMALL = TopicConfig(
    segment_bytes=600,
    retention_ms=-1,
    local_retention_ms=60_000,
    firn_tier_max_lag_ms=600_000,
    firn_tier_chunk_bytes=300,
    file_delete_delay_ms=1000,
)


class Client(Actor):
    """Makes one topic, writes to it, and looks at its log."""

    async def create(self, durability: str = "memory") -> None:
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name="t",
                    num_partitions=1,
                    replication_factor=1,
                    configs=[CreatableTopicConfig(name="firn.durability", value=durability)],
                )
            ],
            timeout_ms=3000,
        )
        result = (await self.ask(ApiKey.CREATE_TOPICS, 7, request)).topics[0]
        assert result.error_code == 0
        self.topic_id = result.topic_id
        self.world.know_topic("t", result.topic_id, 1, disk=durability == "disk", expires=False)

    async def delete(self) -> None:
        for history in self.world.histories.values():
            history.deleting = True
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=self.topic_id)], timeout_ms=3000)
        assert (await self.ask(ApiKey.DELETE_TOPICS, 6, request)).responses[0].error_code == 0

    async def produce(self, records: int = 1, size: int = 50, timestamp: int = 0) -> ErrorCode:
        wire = self.connect()
        when = timestamp or int(self.world.clock.now_ms())
        number = self.world.next_number()
        data = build_batch([(when, None, b"%d" % number + b"v" * size, ())] * records)
        history = self.world.histories[self.topic_id, 0]
        batch = Batch(number, 0, number, records, data[CRC_POSITION:], (when,) * records, idempotent=False, attempts=1)
        history.sent[batch.tail] = batch
        frame = encode_produce_request(
            13, wire.next_correlation_id(), "sim", [(self.topic_id, [(0, data)])], acks=-1, timeout_ms=3000
        )
        answer = await wire.send(ApiKey.PRODUCE, 13, b"".join(map(bytes, frame)))
        result = answer.responses[0].partition_responses[0]
        if not result.error_code and self.owns():
            assert self.machine is not None
            self.world.acked_means_kept.acked(history, batch, result.base_offset, self.machine)
        return ErrorCode(result.error_code)

    @property
    def log(self) -> Any:
        node = self.world.owner.node
        assert node is not None
        return node.logs.get("t", 0)

    @property
    def tiered_end(self) -> int:
        return int(self.world.one_writer.manifest(self.topic_id, 0).tiered_end)


async def move(world: World) -> Machine:
    """Another machine with an empty disk takes over."""
    new = Machine(world, "b")
    world.machines.append(new)
    await world.bring_up(new)
    return new
