"""``firn.produce.validation=records``, set over the wire: what a producer is told of a batch that no consumer could read."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.errors import ErrorCode
from app.core.units import TimestampMs
from app.records.batch import HEADER_BYTES, iter_headers, parse_header, rewrite_header
from app.wire.apis.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from app.wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.handlers.conversation import Talk, batch, talk
from tests.support.broker import running_broker

CREATE_TOPICS = 19
INCREMENTAL_ALTER_CONFIGS = 44
SETTING = "firn.produce.validation"
TOPIC = 2
ZSTD = 4


def poison(*, codec: int = 0) -> bytes:
    """A batch with a right header and checksum that cannot be decompressed, or whose records cannot be decoded."""
    made = bytearray(batch(2, codec=codec))
    made[HEADER_BYTES] = 0xFE
    rewrite_header(made, 0)
    return bytes(made)


async def create(client: Talk, *configs: CreatableTopicConfig) -> None:
    made = await client.ask(CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic("t", 1, 1, configs=list(configs))]))
    assert made.topics[0].error_code == 0


async def alter(client: Talk, value: str) -> None:
    asked = IncrementalAlterConfigsRequest([AlterConfigsResource(TOPIC, "t", [AlterableConfig(SETTING, 0, value)])])
    assert (await client.ask(INCREMENTAL_ALTER_CONFIGS, 1, asked)).responses[0].error_code == 0


async def produce(client: Talk, records: bytes) -> tuple[ErrorCode, int, str | None]:
    """The response's code, offset and sentence."""
    told = (await client.produce(9, [("t", [(0, records)])])).responses[0].partition_responses[0]
    return ErrorCode(told.error_code), told.base_offset, told.error_message


@pytest.mark.parametrize("created_with_it", [True, False])
async def test_a_topic_that_asks_for_it_refuses_a_batch_that_cannot_be_read(
    tmp_path: Path, created_with_it: bool
) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        if created_with_it:
            await create(client, CreatableTopicConfig(SETTING, "records"))
        else:
            await create(client)
            # What follows looks like the first, and is served by what is remembered of it.
            for offset in range(0, 6, 2):
                assert await produce(client, batch(2)) == (ErrorCode.NONE, offset, None)
            assert await produce(client, poison()) == (ErrorCode.NONE, 6, None), "only its header is looked at"
            await alter(client, "records")
        end = broker.log("t").log_end_offset

        code, offset, sentence = await produce(client, poison())
        assert (code, offset) == (ErrorCode.INVALID_RECORD, -1)
        assert sentence is not None
        assert "Record 0 of the batch cannot be read" in sentence
        assert (await produce(client, poison(codec=ZSTD)))[:2] == (ErrorCode.INVALID_RECORD, -1)
        damaged = batch(2)[:-1] + b"\x01"
        assert (await produce(client, damaged))[:2] == (ErrorCode.CORRUPT_MESSAGE, -1)
        assert broker.log("t").log_end_offset == end, "nothing of them was stored"

        assert await produce(client, batch(2)) == (ErrorCode.NONE, end, None)
        assert await produce(client, batch(2, codec=ZSTD)) == (ErrorCode.NONE, end + 2, None)
        await alter(client, "batch")
        assert await produce(client, poison()) == (ErrorCode.NONE, end + 4, None)


async def test_a_batch_without_a_greatest_timestamp_gets_one_also_on_a_connection_whose_requests_are_known(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await create(client)
        for offset in range(0, 6, 2):
            assert await produce(client, batch(2)) == (ErrorCode.NONE, offset, None)
        greatest = parse_header(batch(2)).max_timestamp
        for offset in range(6, 12, 2):
            made = bytearray(batch(2))
            rewrite_header(made, 0, max_timestamp=TimestampMs(-1))
            assert await produce(client, bytes(made)) == (ErrorCode.NONE, offset, None)
        log = broker.log("t")
        read = await log.read_when_ready(6, 100_000, end_offset=log.high_watermark)
        assert {header.max_timestamp for _, header in iter_headers(await read.read_bytes())} == {greatest}
