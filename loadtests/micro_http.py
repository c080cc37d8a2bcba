"""What an HTTP request costs the HTTP process, from the received bytes to the response, without a network: CPU µs.

    python -m loadtests.micro_http [--rounds 15] [--profile single]

The application runs with uvicorn's protocol on transports that drop what is written. Its broker is a stub that answers at once, so
the broker's own CPU is not in the figures. The least of all rounds is the cost without the neighbours' noise.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import random
import sys
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec
import uvicorn
import uvloop
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from app.client.cluster import BrokerAddress, KnownCluster, PartitionView, TopicView
from app.core.metrics import Registry
from app.core.units import BrokerId, LeaderEpoch, Offset, PartitionIndex, TopicId
from app.http.application import create_app
from app.http.connections import ConnectionLimits, OpenConnections, connection_class
from app.http.gateway import Gateway, HttpSettings
from app.machine.runtime import SystemClock, settle_memory
from app.metadata.image.records import LEVEL_FEATURE, REGISTRY_LEVEL
from app.records.builder import build_batch
from app.registry.record_json import Key, KeyType, StoredSchema, write_key, write_schema
from app.wire import codec
from app.wire.apikeys import ApiKey
from app.wire.apis.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from app.wire.apis.init_producer_id import InitProducerIdResponse
from app.wire.apis.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from app.wire.private import SchemasRequest, SchemasResponse, pack, unpack
from app.wire.versions import SERVED
from loadtests.bare_http import constant
from loadtests.http_rates import SCHEMA as SCHEMA_TEXT
from loadtests.http_rates import record_of
from loadtests.raw_http import request_of

CLUSTER = "0123456789012345678901"
TOPIC_ID = TopicId(UUID(int=7))
BROKER = BrokerId(1)
SINGLE_CONNECTIONS = 16
STREAM_RECORDS = 2_000
READ_RECORDS = 2_000
BATCH_RECORDS = 250
SCHEMA = (
    write_key(Key(KeyType.SCHEMA, "t-value", 1)),
    write_schema(StoredSchema("t-value", 1, 1, SCHEMA_TEXT)),
)
"""Key and value of the only record of the registry's log."""


class Sink(asyncio.Transport):
    """A transport whose peer reads everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self._closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 8080)}.get(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    def resume_reading(self) -> None:
        """Nothing comes by itself."""


class Stub:
    """A broker that stores nothing and answers in the next turn of the loop."""

    def __init__(self) -> None:
        self._end = 0
        self.features = {LEVEL_FEATURE: REGISTRY_LEVEL}
        value = msgspec.json.decode(record_of(1_000))["value"]["data"]
        records = [(0, None, msgspec.json.encode(value), ())] * BATCH_RECORDS
        offsets = range(0, READ_RECORDS, BATCH_RECORDS)
        self._batches = {offset: build_batch(records, base_offset=Offset(offset)) for offset in offsets}

    def version_of(self, key: ApiKey) -> int:
        return SERVED[key][1]

    async def request(self, key: ApiKey, message: Any, **more: Any) -> Any:
        await asyncio.sleep(0)
        match key:
            case ApiKey.INIT_PRODUCER_ID:
                return InitProducerIdResponse(producer_id=1, producer_epoch=0)
            case ApiKey.FETCH:
                return self._fetched(message.topics[0].partitions[0].fetch_offset)
            case ApiKey.FIRN_SCHEMAS:
                start = unpack(SchemasRequest, message).offset
                return pack(SchemasResponse(end=1, records=[(0, 0, *SCHEMA)] if start == 0 else []))
        raise AssertionError(key)

    def _fetched(self, offset: int) -> FetchResponse:
        data = PartitionData(high_watermark=1 << 40, last_stable_offset=0, records=self._batches[offset])
        return FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])])

    async def exchange(
        self, key: int, version: int, body: bytes, decode: Callable[[memoryview], Any], *, timeout_ms: int
    ) -> Any:
        await asyncio.sleep(0)
        self._end += 1
        parts = [PartitionProduceResponse(index=0, base_offset=self._end)]
        topics = [TopicProduceResponse(topic_id=TOPIC_ID, name="t", partition_responses=parts)]
        return decode(memoryview(codec.encode_response(key, version, ProduceResponse(responses=topics))))


def with_stub(gateway: Gateway) -> None:
    """Let a gateway believe that the stub is its cluster."""
    stub, cluster = Stub(), gateway.cluster
    partition = PartitionView(PartitionIndex(0), BROKER, LeaderEpoch(0), (BROKER,), (BROKER,))
    topic = TopicView("t", TOPIC_ID, False, (partition,))
    brokers = {BROKER: BrokerAddress(BROKER, "127.0.0.1", 1, None)}
    cluster.view = KnownCluster(CLUSTER, BROKER, brokers, {"t": topic})
    cluster._view_time["t"] = asyncio.get_running_loop().time()

    async def connected(*_: Any) -> Any:
        return stub

    async def described(name: str) -> TopicView:
        return topic

    gateway.admin.describe_topic = described  # type: ignore[method-assign]
    cluster.broker = connected  # type: ignore[method-assign, assignment]
    cluster.any_broker = connected  # type: ignore[method-assign]


class Bench:
    """Connections to an application."""

    def __init__(self, app: ASGIApp, protocol: type[asyncio.Protocol] | str) -> None:
        config = uvicorn.Config(
            app, http=protocol, ws="none", lifespan="off", log_config=None, access_log=False, timeout_keep_alive=10**6
        )
        config.load()
        self._state = ServerState()
        self._made: list[tuple[Any, Sink]] = []
        for _ in range(SINGLE_CONNECTIONS):
            connection: Any = config.http_protocol_class(config=config, server_state=self._state, app_state={})  # type: ignore[call-arg]
            sink = Sink()
            connection.connection_made(sink)
            self._made.append((connection, sink))

    async def ask(self, request: bytes, connections: int, pieces: int = 1 << 30) -> list[bytes]:
        """One request on each of so many connections, in pieces of so many bytes, and the responses."""
        some = self._made[:connections]
        for connection, sink in some:
            sink.written.clear()
            connection.data_received(request[:pieces])
        for start in range(pieces, len(request), pieces):
            await asyncio.sleep(0)
            for connection, _ in some:
                connection.data_received(request[start : start + pieces])
        while any(not connection.cycle.response_complete for connection, _ in some):  # noqa: ASYNC110 (turns of the loop)
            await asyncio.sleep(0)
        return [b"".join(sink.written) for _, sink in some]


async def measure(options: argparse.Namespace) -> None:
    registry = Registry()
    app = create_app(
        HttpSettings(bootstrap=(("127.0.0.1", 1),)), clock=SystemClock(), rng=random.Random(1), registry=registry
    )
    limits = ConnectionLimits(connections_max=100, header_timeout_ms=10**9, transfer_timeout_ms=10**9)
    protocol = connection_class(OpenConnections(limits, registry, quick=app.state.quick_records))
    path = f"/v3/clusters/{CLUSTER}/topics/t/records"
    record = record_of(200)
    single = request_of("POST", path, 8080, record)
    usual = request_of("POST", path, 8080, record, Cookie="a=b")
    stream = request_of("POST", path, 8080, record * STREAM_RECORDS)
    pages = f"/v3/clusters/{CLUSTER}/topics/t/partitions/0/records"
    page = f"{pages}?offset=0&count={READ_RECORDS}&bytes=10000000&isolation=read_uncommitted"
    read = request_of("GET", page, 8080, Accept="application/x-ndjson")
    lookup = request_of("GET", "/schemas/ids/1", 8080)
    async with app.router.lifespan_context(app):
        with_stub(app.state.gateway)
        bare, firn = Bench(constant, "httptools"), Bench(app, protocol)
        kinds: dict[str, tuple[Bench, bytes, int, int, int]] = {
            "bare": (bare, single, SINGLE_CONNECTIONS, 20, 1),
            "lone": (firn, single, 1, 50, 1),
            "single": (firn, single, SINGLE_CONNECTIONS, 20, 1),
            "usual": (firn, usual, SINGLE_CONNECTIONS, 20, 1),
            "stream": (firn, stream, 1, 1, STREAM_RECORDS),
            "read": (firn, read, 1, 1, READ_RECORDS),
            "lookup": (firn, lookup, SINGLE_CONNECTIONS, 20, 1),
        }
        least = dict.fromkeys(kinds, float("inf"))
        for number in range(options.rounds + 1):
            for name, (bench, request, connections, times, records) in kinds.items():
                profile = cProfile.Profile(time.process_time) if name == options.profile and number else None
                began_s = time.process_time()
                if profile is not None:
                    profile.enable()
                answers: list[bytes] = []
                for _ in range(times):
                    answers = await bench.ask(request, connections, 65_536)
                if profile is not None:
                    profile.disable()
                    if number == options.rounds:
                        pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(40)
                spent = (time.process_time() - began_s) / (times * connections * records) * 1e6
                failed = [one[:500] for one in answers if b" 200 " not in one[:16]]
                assert not failed, failed
                if number:
                    least[name] = min(least[name], spent)
    titles = {
        "bare": "uvicorn that answers a constant",
        "lone": "produce, a record alone",
        "single": f"produce, a record a request, {SINGLE_CONNECTIONS} at a time",
        "usual": f"the same through ASGI, {SINGLE_CONNECTIONS} at a time",
        "stream": "produce, a record of 200 B in a stream",
        "read": "a record of 1 KB in a page of lines",
        "lookup": f"registry, a schema by its id, {SINGLE_CONNECTIONS} at a time",
    }
    for name, spent in least.items():
        print(f"{titles[name]:48} CPU µs, least {spent:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--profile", default="", help="bare, lone, single, stream, read or lookup: print where its last round computes"
    )
    options = parser.parse_args()
    settle_memory()  # as the HTTP process does
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(options))


if __name__ == "__main__":
    main()
