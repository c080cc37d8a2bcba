"""Requests of every API with bytes changed, inserted and cut off: the broker answers or closes, and serves on."""

from __future__ import annotations

import asyncio
import random
import uuid
from pathlib import Path
from typing import Any

import pytest

from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.codec import shape_of, struct_name
from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from app.wire.framing import request_frame
from app.wire.produce import encode_produce_request
from app.wire.versions import SERVED
from tests.handlers.conversation import batch, talk
from tests.support.broker import RunningBroker, running_broker

HELLO = ApiVersionsRequest("test", "1.0")
ROUNDS = 250


def captured() -> list[bytes]:
    """One sound frame of every served API in its first and last version."""
    frames = []
    for key, versions in sorted(SERVED.items()):
        for version in set(versions):
            if key == ApiKey.PRODUCE:
                topic: Any = "t" if version < 13 else uuid.uuid4()
                pieces = encode_produce_request(version, 1, "c", [(topic, [(0, batch(3))])], acks=-1, timeout_ms=10)
                frames.append(b"".join(bytes(piece) for piece in pieces))
            elif key == ApiKey.FETCH:
                topic = "t" if version < 13 else uuid.uuid4()
                request = FetchRequest(max_wait_ms=0, topics=[(topic, [FetchPartition(0)])])
                frames.append(encode_fetch_request(version, 1, "c", request))
            else:
                shape = shape_of(key, version)
                assert shape is not None
                message = shape.classes[struct_name(key, True)]()
                frames.append(request_frame(key, version, 1, "c", message))
    return frames


@pytest.mark.parametrize("seed", range(4))
async def test_mutated_requests_end_in_an_answer_or_a_closed_connection(tmp_path: Path, seed: int):
    async with running_broker(tmp_path) as broker:
        await broker.create_topic("t")
        await mutate(broker, seed)


async def mutate(broker: RunningBroker, seed: int) -> None:
    server = broker.node.server
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    rng = random.Random(seed)
    frames = captured()
    for _ in range(ROUNDS):
        frame = bytearray(rng.choice(frames))
        for _ in range(rng.choice((1, 1, 2, 8))):
            match rng.randrange(4):
                case 0:
                    frame[rng.randrange(4, len(frame))] ^= 1 << rng.randrange(8)
                case 1:
                    frame[rng.randrange(4, len(frame))] = rng.choice((0, 0x7F, 0x80, 0xFF))
                case 2:
                    place = rng.randrange(4, len(frame))
                    frame[place:place] = rng.choice((b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", rng.randbytes(4)))
                case 3 if len(frame) > 20:
                    del frame[rng.randrange(5, len(frame)) :]
        frame[:4] = (len(frame) - 4).to_bytes(4, "big")
        async with talk(broker.port) as client:
            client.writer.write(bytes(frame))
            client.writer.write_eof()
            assert await client.closed()
    # What was begun for a client that left (making a coordinator's topic, a group's first rebalance) ends by itself.
    async with asyncio.timeout(60):
        while server._connections or server._tasks:
            await asyncio.sleep(0.01)
    assert told == []
    assert server.frames.bytes == 0
    async with talk(broker.port) as client:
        assert (await client.ask(ApiKey.API_VERSIONS, 3, HELLO)).error_code == 0
