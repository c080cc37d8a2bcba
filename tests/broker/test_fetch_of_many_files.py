"""A Fetch of more partitions than the broker has file descriptors for logs."""

from __future__ import annotations

from pathlib import Path

from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from tests.handlers.conversation import Talk, batch, talk
from tests.support.broker import running_broker
from tests.support.talking import FETCH

PARTITIONS, DESCRIPTORS = 150, 100


async def fetch(client: Talk, partitions: list[int]) -> dict[int, tuple[int, bytes]]:
    """By partition: the error code and the records from its start."""
    client.correlation_id += 1
    wanted = [FetchPartition(one, -1, 0, partition_max_bytes=1 << 20) for one in partitions]
    # As many bytes as this there never are: the request must be answered all the same, without a wait.
    message = FetchRequest(max_wait_ms=60_000, min_bytes=1 << 20, topics=[("t", wanted)])
    client.writer.write(encode_fetch_request(12, client.correlation_id, "test", message))
    _, answer = await client.answer(FETCH, 12)
    [topic] = answer.responses
    return {one.partition_index: (one.error_code, bytes(one.records or b"")) for one in topic.partitions}


async def test_it_has_records_of_some_partitions_and_the_next_ones_have_the_rest(tmp_path: Path) -> None:
    async with running_broker(tmp_path, descriptors_max=2 * DESCRIPTORS) as broker, talk(broker.port) as client:
        await broker.create_topic("t", partitions=PARTITIONS, firn_durability="disk")
        for partition in range(PARTITIONS):
            answer = await client.produce(9, [("t", [(partition, batch())])])
            assert answer.responses[0].partition_responses[0].error_code == 0
        cache, left = broker.node.logs.log_directory.descriptors, list(range(PARTITIONS))
        rounds = 0
        while left:
            found = await fetch(client, left)
            assert {code for code, _ in found.values()} == {0}
            read = [one for one, (_, records) in found.items() if records]
            assert 0 < len(read) <= DESCRIPTORS * 3 // 4
            left = [one for one in left if one not in read]
            rounds += 1
        assert rounds > 1
        assert cache.read == 0, "what was sent is released"
