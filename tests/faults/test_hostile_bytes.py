"""Bad bytes on the socket: each gets a Kafka error, or a closed connection that the log tells of, and nothing else.

Requests of every API that real clients sent, or that Firn's own encoder makes, are changed byte by byte. Behind each goes a
sound ApiVersions request: if it is answered, the broker has kept its place in the stream; if not, it must have closed the
connection and counted it in the log. All the while another client produces and reads back, and must not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.core.limits import KIB, MIB, REQUEST_BYTES_MAX
from app.transport.connection import BROKEN_TOLD
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.apis.delete_topics import DeleteTopicsRequest
from app.wire.apis.metadata import MetadataRequest
from app.wire.codec import decode_request
from app.wire.framing import request_frame
from app.wire.header import encode_request_header, parse_request_header
from app.wire.versions import ADVERTISED, PRIVATE, SERVED
from tests.faults.healthy import ANSWER_S_MAX, healthy_client
from tests.faults.producing import link, plain_batch, produce_frame
from tests.faults.served import Served, serving
from tests.support.waiting import block_until
from tests.wire import reference
from tests.wire.reference import Subject

GOLDEN = Path(__file__).parents[1] / "wire" / "golden" / "requests.json"
FEW, MANY = 600, 80_000
AT_ONCE = 32
STALL = re.compile(r"The event loop stood still for \d+ ms \((\d+) ms of CPU\)")
STALL_CPU_MS_MAX = 75
"""INV-15 has 50. A line counts up to 25 ms of turns before the one that it tells of. Waits that took no CPU are the machine's."""
SENTINEL_ID = 0x5EED_1DEA
SENTINEL = request_frame(ApiKey.API_VERSIONS, 0, SENTINEL_ID, "after", ApiVersionsRequest())
PATIENCE_S = 0.5
"""How long an answer is waited for where waiting may be what was asked: a Fetch may say so in four of its bytes."""
GROWTH_BYTES_MAX = 48 * MIB
"""What the broker may have grown by after everything: pooled buffers, code that was loaded meanwhile, fragments."""
PARTITION_BYTES_MAX = 10 * KIB
"""What it may have grown by besides for each partition that changed requests have made, as they asked: of the most that there were
at a time, since the memory of deleted ones is used again and not given back."""
MAKES_PARTITIONS = {ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.METADATA}
CREATED_AGAIN, BIG_PARTITIONS = 5, 2_000
DELETED_PARTITION_BYTES_MAX = 2 * KIB
"""Of a deleted partition, whose files are still there for a minute; half of what one in use takes."""
CLOSING = "closing the connection of "
MAY_WAIT = {ApiKey.FETCH}
HEADER_BYTES = 14
"""Key, version, correlation id and a client id of four letters: most of a header."""
INTERESTING = (0x00, 0x01, 0x7F, 0x80, 0xFF)


def corpus() -> list[bytes]:
    """Whole frames: captured ones, and for every API and version served one with every field filled."""
    frames = [
        bytes.fromhex(hexed) for captured in json.loads(GOLDEN.read_text()).values() for hexed in captured.values()
    ]
    for key, (first, last) in SERVED.items():
        for version in range(first, last + 1):
            subject = Subject(key, version, True)
            body = reference.encode(subject, reference.make(subject, random.Random(version), full=True)).data
            frames.append(framed(encode_request_header(key, version, 7, "fuzz") + body))
    for topic in ("fuzzed", "healthy"):
        frames.append(produce_frame(topic, 0, plain_batch(3)))
    for key in sorted(PRIVATE):
        frames.append(framed(encode_request_header(key, 0, 7, "fuzz") + b"\x05\x91\xa1tx\x00"))
    return frames


def test_the_corpus_has_every_api_that_the_broker_serves() -> None:
    assert {struct.unpack_from(">h", frame, 4)[0] for frame in corpus()} >= set(ADVERTISED) | PRIVATE


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def wants_no_answer(frame: bytes) -> bool:
    """Whether it is a Produce with acks=0."""
    header = parse_request_header(memoryview(frame)[4:])
    if header.api_key != ApiKey.PRODUCE:
        return False
    body = memoryview(frame)[4 + header.body_start :]
    return bool(decode_request(header.api_key, header.api_version, body).acks == 0)


def mutated(frame: bytes, chance: random.Random) -> bytes:
    """The frame with something wrong inside, mostly behind its header, and a size prefix that fits."""
    body = bytearray(frame[4:])
    first = 0 if chance.random() < 0.1 else min(HEADER_BYTES, len(body) - 1)
    at = chance.randrange(first, len(body))
    match chance.randrange(8):
        case 0 | 1:
            for _ in range(chance.randint(1, 3)):
                body[chance.randrange(first, len(body))] ^= 1 << chance.randrange(8)
        case 2:
            body[at] = chance.choice(INTERESTING)
        case 3:
            body[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0"))
        case 4:
            body[at:at] = chance.choice((b"\xff\xff\xff\xff\x0f", b"\x80" * 12, chance.randbytes(chance.randrange(40))))
        case 5:
            del body[at:]
        case 6:
            del body[at : at + chance.randint(1, 8)]
        case 7:
            body[at:] = chance.randbytes(chance.randrange(200))
    return framed(bytes(body))


@dataclass
class Tally:
    """What became of the connections."""

    outcomes: Counter[str] = field(default_factory=Counter)
    silent: Counter[str] = field(default_factory=Counter)


async def attack(port: int, frame: bytes, tally: Tally) -> None:
    """Send a frame and the sentinel; wait for the sentinel's answer, or for the broker to close."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    key = struct.unpack_from(">h", frame, 4)[0] if len(frame) >= 6 else -1
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(frame + SENTINEL)
        try:
            async with asyncio.timeout(PATIENCE_S if key in MAY_WAIT else ANSWER_S_MAX):
                while True:
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    answer = await reader.readexactly(size)
                    if answer[:4] == SENTINEL[8:12]:
                        tally.outcomes["answered"] += 1
                        return
        except (asyncio.IncompleteReadError, ConnectionError):
            tally.outcomes["closed"] += 1
        except TimeoutError:
            tally.silent[str(key)] += 1
            assert key in MAY_WAIT, f"neither answered nor closed: {frame.hex()}"
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@contextlib.contextmanager
def attacked(path: Path) -> Iterator[Served]:
    settings = {"auto.create.topics.enable": "false", "connections.max.idle.ms": 60_000}
    with serving(path, settings=settings) as broker:
        yield broker


async def prepare(broker: Served) -> None:
    async with link(broker.port) as connection:
        await connection.create_topic("healthy")
        await connection.create_topic("fuzzed")


async def partitions(port: int) -> int:
    async with link(port) as connection:
        answer = await connection.ask(ApiKey.METADATA, 12, MetadataRequest(topics=None))
    return sum(len(topic.partitions) for topic in answer.topics)


def closing_lines(broker: Served) -> list[str]:
    return [line for line in broker.lines if CLOSING in line]


def check_log(broker: Served, closed: int, left: int = 0) -> None:
    """A line for each of the first connections that the broker closed, then one every so often, and no other lines but the first.

    ``left``: connections on which nobody waited to the end; the broker may have closed them later.
    """
    block_until(lambda: len(closing_lines(broker)) >= min(closed, BROKEN_TOLD), "closes are told of")
    one_by_one = [line for line in closing_lines(broker) if "it goes on" not in line]
    assert min(closed, BROKEN_TOLD) <= len(one_by_one) <= min(closed + left, BROKEN_TOLD)
    others = [
        line
        for line in broker.lines
        if CLOSING not in line
        and "serves Kafka on" not in line
        and "over after" not in line
        and not ((stall := STALL.search(line)) is not None and int(stall[1]) <= STALL_CPU_MS_MAX)
    ]
    assert not others, "\n".join(others[:20])


async def fuzz(path: Path, count: int, seed: int) -> Tally:
    chance = random.Random(seed)
    frames = corpus()
    with attacked(path) as broker:
        await prepare(broker)
        tally = Tally()
        async with healthy_client(broker.port):
            # Everything sound first: whatever code an API needs is loaded then, and is no growth.
            for frame in frames:
                await attack(broker.port, frame, tally)
            before = broker.resident_bytes
            todo = iter(range(count))
            made = 0

            async def work() -> None:
                nonlocal made
                for number in todo:
                    frame = frames[number % len(frames)]
                    await attack(broker.port, mutated(frame, chance), tally)
                    if struct.unpack_from(">h", frame, 4)[0] in MAKES_PARTITIONS:
                        made = max(made, await partitions(broker.port))

            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(work())
        assert broker.resident_bytes - before < GROWTH_BYTES_MAX + made * PARTITION_BYTES_MAX
        check_log(broker, tally.outcomes["closed"], tally.silent.total())
        assert tally.outcomes["answered"] > count / 10
        assert tally.outcomes["closed"] > count / 10
        assert sum(tally.silent.values()) < count / 20
    return tally


@pytest.mark.ci
async def test_mutated_requests_of_every_api_get_an_error_or_a_close_with_one_line(tmp_path: Path) -> None:
    await fuzz(tmp_path, FEW, 11)


@pytest.mark.slow
async def test_tens_of_thousands_of_mutated_requests(tmp_path: Path) -> None:
    await fuzz(tmp_path, MANY, 12)


@pytest.mark.ci
async def test_topics_made_and_deleted_again_and_again_leave_no_memory_behind(tmp_path: Path) -> None:
    with attacked(tmp_path) as broker:
        grown: list[int] = []
        async with link(broker.port) as connection:
            for _ in range(CREATED_AGAIN):
                await connection.create_topic("big", BIG_PARTITIONS)
                request = DeleteTopicsRequest(topic_names=["big"], timeout_ms=60_000)
                answer = await connection.ask(ApiKey.DELETE_TOPICS, 5, request)
                assert [topic.error_code for topic in answer.responses] == [0]
                grown.append(broker.resident_bytes)
        assert grown[-1] - grown[0] < (CREATED_AGAIN - 1) * BIG_PARTITIONS * DELETED_PARTITION_BYTES_MAX
        assert await partitions(broker.port) == 0


# --- frames ---------------------------------------------------------------------------------------------------------


BAD_SIZES = (0, 1, 9, -1, -(2**31), REQUEST_BYTES_MAX + 1, 2**31 - 1, 0x47455420, 0x16030100)
"""Below and above what a request can be; the last two begin an HTTP request and a TLS handshake."""


async def closed_by_the_broker(port: int, data: bytes) -> bool:
    """Whether the broker closes a connection that sent ``data`` and says no more; other answers are read and dropped."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                await reader.read(-1)
            return True
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.ci
async def test_frames_of_impossible_size_random_bytes_and_other_protocols_close_with_one_line(tmp_path: Path) -> None:
    chance = random.Random(13)
    with attacked(tmp_path) as broker:
        await prepare(broker)
        closed = 0
        async with healthy_client(broker.port):
            for size in BAD_SIZES:
                await closed_by_the_broker(broker.port, struct.pack(">i", size) + chance.randbytes(50))
                closed += 1
            for start in (
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                b"SSH-2.0-x\r\n",
            ):
                await closed_by_the_broker(broker.port, start + bytes(8))
                closed += 1
            for _ in range(100):
                # Random bytes of a sound size: the key and version that they begin with are nobody's.
                size = chance.randint(10, 300)
                unknown = struct.pack(">ihh", size, chance.choice((99, 500, -1, 32767)), chance.randrange(-5, 99))
                await closed_by_the_broker(broker.port, unknown + chance.randbytes(size - 4))
                closed += 1
        check_log(broker, closed)


@pytest.mark.ci
async def test_requests_cut_off_anywhere_end_with_the_client_and_leave_no_line(tmp_path: Path) -> None:
    chance = random.Random(14)
    with attacked(tmp_path) as broker:
        await prepare(broker)
        async with healthy_client(broker.port):
            before = broker.resident_bytes
            frames = [*corpus(), produce_frame("healthy", 0, plain_batch(1, b"x" * 900_000))]
            for frame in frames:
                _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
                writer.write(frame[: chance.randrange(len(frame))])
                if chance.random() < 0.5:
                    await writer.drain()
                    writer.transport.abort()
                else:
                    writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        made = await partitions(broker.port)
        assert broker.resident_bytes - before < GROWTH_BYTES_MAX + made * PARTITION_BYTES_MAX
        check_log(broker, 0)


@pytest.mark.ci
async def test_a_request_that_comes_byte_by_byte_is_served(tmp_path: Path) -> None:
    chance = random.Random(15)
    with attacked(tmp_path) as broker:
        await prepare(broker)
        async with healthy_client(broker.port):
            # Those of private APIs have a body that is none. An error of a Produce with acks=0 ends its connection, as in Kafka.
            whole = [
                frame
                for frame in corpus()
                if struct.unpack_from(">h", frame, 4)[0] not in PRIVATE and not wants_no_answer(frame)
            ]
            for frame in (SENTINEL, *chance.sample(whole, 20)):
                reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
                for byte in frame + SENTINEL:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0)  # so that it leaves by itself
                while True:
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    if (await reader.readexactly(size))[:4] == SENTINEL[8:12]:
                        break
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        check_log(broker, 0)
