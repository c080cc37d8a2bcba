"""How a broker reaches the other brokers of its cluster: ``ControlLink`` over Kafka's protocol.

A connection answers in order, so a request that waits long must not delay a request that is due soon. Each other broker gets up to
one connection for each of these *lanes*: heartbeats and questions, entries of the cluster log, changes, fetches, entries of segment
manifests, states of share groups, markers, records of the audit log, partitions that are added to transactions, looks at
transactions, holds of copies, ends of partitions, reads of `_schemas`, and pulses, which come from another loop. A connection that
failed is opened again by the next request. Nothing is sent twice (F1).

Tests: ``tests/broker/test_passing_on.py``, ``tests/broker/test_pulse_thread.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, assert_never
from uuid import UUID

import msgspec

from app.broker.peers import transaction_calls
from app.client.connection import Dialer, KafkaConnection, dial_tcp, open_connection
from app.core.errors import BrokerUnavailable, ErrorCode, RequestRejected
from app.core.units import Offset, PartitionIndex, TopicPartition
from app.metadata.image.image import BrokerImage
from app.metadata.image.records import Endpoint
from app.metadata.peers.control import (
    ENVELOPE_SEQUENCE,
    ChangeRequest,
    ChangeResponse,
    DropAsked,
    EntriesRequest,
    EntriesResponse,
    HeardRequest,
    HeardResponse,
    Heartbeat,
    HeartbeatAnswer,
    HoldRequest,
    HoldResponse,
    InSyncAnswer,
    InSyncAsked,
    LookRequest,
    LookResponse,
    ManifestsRequest,
    ManifestsResponse,
    NotSent,
    OfLog,
    PulseRequest,
    PulseResponse,
    RegisterRequest,
    RegisterResponse,
    ReleaseAsked,
    SwitchAsked,
    encode_ranges,
)
from app.transactions.link import AddAnswer, AddAsked, MarkerAsked
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    BrokerState,
)
from app.wire.apis.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from app.wire.apis.envelope import EnvelopeRequest, EnvelopeResponse
from app.wire.apis.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from app.wire.apis.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from app.wire.fetch import Fetched, FetchRequest, decode_fetched, encode_fetch_body
from app.wire.private import RequestsRequest, RequestsResponse, SchemasRequest, SchemasResponse, pack, unpack
from app.wire.versions import BETWEEN_BROKERS, SERVED

T = TypeVar("T", bound=msgspec.Struct)

CONNECT_MS: Final = 1_000
"""A broker that does not accept within it counts as not answering, for now."""
BEAT_MS: Final = 2_000
PULSE_MS: Final = 4_000
"""Limit of each step of a pulse, also of its connection: a machine that starves one broker is slow for others as well, and a new
connection costs more than a late response."""
CHANGE_MS: Final = 30_000
ENDS_MS: Final = 5_000
ENDS_VERSION: Final = 7
"""Version of ListOffsets that every version of Firn serves."""
CONSUMER: Final = -1
LATEST: Final = -1
PROPOSAL_MS: Final = 5_000
"""A proposed in-sync set without an answer stays pending, and is sent again, maybe to the next controller."""
REGISTER_MS: Final = 20_000
"""The controller tries the broker's endpoints first."""
FETCH_VERSION: Final = 17
FETCH_MS: Final = 10_000
"""Added to the time that the leader may wait."""
SHARE_MS: Final = 5_000
"""A share coordinator answers when the state is stored by all replicas in sync."""
LOOK_MS: Final = 30_000
"""A broker may have to read from the object store for its answer."""
HOLD_MS: Final = 20_000
"""A leader waits ``copy_holds.HOLD_WAIT_S`` for its image and for copies under way."""
SCHEMAS_MS: Final = 5_000
PRODUCE_VERSION: Final = 12
"""The last version that names topics."""
PRODUCE_MS: Final = 5_000
LANES: Final = (
    "audit",
    "beat",
    "entries",
    "change",
    "fetch",
    "manifests",
    "share",
    "markers",
    "transactions",
    "late-transactions",
    "looks",
    "holds",
    "ends",
    "schemas",
    "pulse",
)


class KafkaControlLink:
    """``ControlLink`` over TCP. Belongs to one event loop."""

    def __init__(self, *, dial: Dialer = dial_tcp) -> None:
        self._dial = dial
        self._lanes: dict[tuple[str, int, str], KafkaConnection] = {}
        self._opening: dict[tuple[str, int, str], asyncio.Lock] = {}

    # --- asking -------------------------------------------------------------------------------------------------------

    async def register(self, to: BrokerImage, asked: RegisterRequest) -> RegisterResponse:
        return await self._ask(to, "change", ApiKey.FIRN_REGISTER, asked, RegisterResponse, REGISTER_MS)

    async def heartbeat(self, to: BrokerImage, beat: Heartbeat) -> HeartbeatAnswer:
        message = BrokerHeartbeatRequest(
            broker_id=beat.broker_id,
            broker_epoch=beat.broker_epoch,
            current_metadata_offset=beat.applied,
            want_shut_down=beat.wants_stop,
            wal_next=beat.wal_next,
        )
        answer: BrokerHeartbeatResponse = await self._send(to, "beat", ApiKey.BROKER_HEARTBEAT, message, BEAT_MS)
        return HeartbeatAnswer(
            ErrorCode(answer.error_code), answer.is_caught_up, answer.is_fenced, answer.should_shut_down
        )

    async def heard(self, to: BrokerImage, asked: HeardRequest) -> HeardResponse:
        return await self._ask(to, "beat", ApiKey.FIRN_MEMBERS, asked, HeardResponse, BEAT_MS)

    async def pulse(self, to: BrokerImage, asked: Callable[[], PulseRequest]) -> PulseResponse:
        """As ``PulseLink``."""
        await self.connection(to, "pulse")
        return await self._ask(to, "pulse", ApiKey.FIRN_PULSE, asked(), PulseResponse, PULSE_MS)

    async def entries(self, to: BrokerImage, asked: EntriesRequest) -> EntriesResponse:
        return await self._ask(to, "entries", ApiKey.FIRN_ENTRIES, asked, EntriesResponse, asked.wait_ms + BEAT_MS)

    async def change(self, to: BrokerImage, asked: ChangeRequest) -> ChangeResponse:
        return await self._ask(to, "change", ApiKey.FIRN_CHANGE, asked, ChangeResponse, CHANGE_MS)

    async def alter_in_sync(
        self, to: BrokerImage, broker_id: int, broker_epoch: int, asked: Sequence[InSyncAsked]
    ) -> Sequence[InSyncAnswer]:
        topics: dict[UUID, AlterPartitionRequestTopicData] = {}
        for one in asked:
            topic = topics.setdefault(one.topic_id, AlterPartitionRequestTopicData(topic_id=one.topic_id))
            topic.partitions.append(
                AlterPartitionRequestPartitionData(
                    partition_index=one.partition,
                    leader_epoch=one.leader_epoch,
                    partition_epoch=one.partition_epoch,
                    new_isr_with_epochs=[
                        BrokerState(broker_id=member.broker_id, broker_epoch=member.broker_epoch)
                        for member in one.members
                    ],
                )
            )
        return await self._alter_partitions(to, broker_id, broker_epoch, list(topics.values()))

    async def alter_logs(
        self, to: BrokerImage, broker_id: int, broker_epoch: int, asked: Sequence[OfLog]
    ) -> Sequence[InSyncAnswer]:
        topics: dict[UUID, AlterPartitionRequestTopicData] = {}
        for one in asked:
            topic = topics.setdefault(one.topic_id, AlterPartitionRequestTopicData(topic_id=one.topic_id))
            data = AlterPartitionRequestPartitionData(
                partition_index=one.partition, leader_epoch=one.leader_epoch, partition_epoch=one.partition_epoch
            )
            match one:
                case ReleaseAsked():
                    data.released_last, data.released_to = one.last_number, one.to
                case SwitchAsked():
                    data.switched_first, data.released_last = one.first_number, one.last_number
                case DropAsked():
                    data.dropped_ranges = encode_ranges(one.ranges)
                case _:
                    assert_never(one)
            topic.partitions.append(data)
        return await self._alter_partitions(to, broker_id, broker_epoch, list(topics.values()))

    async def _alter_partitions(
        self, to: BrokerImage, broker_id: int, broker_epoch: int, topics: list[AlterPartitionRequestTopicData]
    ) -> Sequence[InSyncAnswer]:
        message = AlterPartitionRequest(broker_id=broker_id, broker_epoch=broker_epoch, topics=topics)
        answer: AlterPartitionResponse = await self._send(to, "change", ApiKey.ALTER_PARTITION, message, PROPOSAL_MS)
        if answer.error_code:
            raise RequestRejected(ErrorCode(answer.error_code), f"{_named(to)} refused the changes of partitions.")
        return [
            InSyncAnswer(topic.topic_id, one.partition_index, ErrorCode(one.error_code))
            for topic in answer.topics
            for one in topic.partitions
        ]

    async def pass_on(
        self, to: BrokerImage, frame: bytes, principal: bytes, client_address: bytes
    ) -> tuple[int, bytes]:
        message = EnvelopeRequest(request_data=frame, request_principal=principal, client_host_address=client_address)
        answer: EnvelopeResponse = await self._send(to, "change", ApiKey.ENVELOPE, message, CHANGE_MS)
        if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise RequestRejected(
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                f"{_named(to)} takes no requests of others from this broker: name this broker's principal in super.users there.",
            )
        if answer.error_code:
            raise RequestRejected(ErrorCode(answer.error_code), f"{_named(to)} refused the request.")
        data = bytes(answer.response_data or b"")
        if len(data) < ENVELOPE_SEQUENCE.size:
            raise BrokerUnavailable(f"{_named(to)} sent an answer that is too short.")
        return ENVELOPE_SEQUENCE.unpack_from(data)[0], data[ENVELOPE_SEQUENCE.size :]

    async def reach(self, to: BrokerImage) -> None:
        await self.connection(to, "fetch")

    async def fetch(self, to: BrokerImage, request: FetchRequest) -> Fetched:
        """Fetch as a follower. Raises: BrokerUnavailable, ProtocolError."""
        connection = await self.connection(to, "fetch")
        return await connection.exchange(
            ApiKey.FETCH,
            FETCH_VERSION,
            encode_fetch_body(FETCH_VERSION, request),
            lambda view: decode_fetched(FETCH_VERSION, view),
            timeout_ms=request.max_wait_ms + FETCH_MS,
        )

    async def manifests(self, to: BrokerImage, asked: ManifestsRequest) -> ManifestsResponse:
        """Raises: BrokerUnavailable, ProtocolError, RequestRejected."""
        return await self._ask(
            to, "manifests", ApiKey.FIRN_MANIFESTS, asked, ManifestsResponse, asked.wait_ms + FETCH_MS
        )

    async def share_states(self, to: BrokerImage, key: ApiKey, message: Any) -> Any:
        connection = await self.connection(to, "share")
        return await connection.request(key, message, version=SERVED[key][1], timeout_ms=SHARE_MS)

    async def write_markers(self, to: BrokerImage, asked: Sequence[MarkerAsked]) -> Sequence[ErrorCode]:
        return await transaction_calls.write_markers(await self.connection(to, "markers"), asked)

    async def add_to_transactions(
        self, to: BrokerImage, asked: Sequence[AddAsked], *, late: bool = False
    ) -> Sequence[AddAnswer]:
        lane = "late-transactions" if late else "transactions"
        return await transaction_calls.add_to_transactions(await self.connection(to, lane), asked)

    async def look_at_transactions(self, to: BrokerImage, asked: LookRequest) -> LookResponse:
        return await self._ask(to, "looks", ApiKey.FIRN_TRANSACTIONS, asked, LookResponse, LOOK_MS)

    async def ends(self, to: BrokerImage, asked: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        topics: dict[str, ListOffsetsTopic] = {}
        for one in asked:
            topic = topics.setdefault(one.topic, ListOffsetsTopic(one.topic))
            topic.partitions.append(ListOffsetsPartition(one.partition, timestamp=LATEST))
        connection = await self.connection(to, "ends")
        answer: ListOffsetsResponse = await connection.request(
            ApiKey.LIST_OFFSETS,
            ListOffsetsRequest(replica_id=CONSUMER, topics=list(topics.values())),
            version=ENDS_VERSION,
            timeout_ms=ENDS_MS,
        )
        return {
            TopicPartition(topic.name, PartitionIndex(one.partition_index)): Offset(one.offset)
            for topic in answer.topics
            for one in topic.partitions
            if not one.error_code
        }

    async def schemas(self, to: BrokerImage, asked: SchemasRequest) -> SchemasResponse:
        """Read `_schemas` on its leader. Raises: BrokerUnavailable, ProtocolError."""
        connection = await self.connection(to, "schemas")
        body = await connection.request(ApiKey.FIRN_SCHEMAS, pack(asked), version=0, timeout_ms=SCHEMAS_MS)
        return unpack(SchemasResponse, body)

    async def requests(self, to: BrokerImage, asked: RequestsRequest) -> RequestsResponse:
        """Ask a leader for the fate of a record. Raises: BrokerUnavailable, ProtocolError."""
        connection = await self.connection(to, "looks")
        body = await connection.request(ApiKey.FIRN_REQUESTS, pack(asked), version=0, timeout_ms=SCHEMAS_MS)
        return unpack(RequestsResponse, body)

    async def hold_copies(self, to: BrokerImage, asked: HoldRequest) -> HoldResponse:
        return await self._ask(to, "holds", ApiKey.FIRN_HOLD, asked, HoldResponse, HOLD_MS)

    async def produce(self, to: BrokerImage, topic: str, index: int, batch: bytes) -> None:
        """Have a leader append a batch (acks=1). Raises: BrokerUnavailable, ProtocolError, RequestRejected."""
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=index, records=batch)])
        message = ProduceRequest(acks=1, timeout_ms=PRODUCE_MS, topic_data=[data])
        connection = await self.connection(to, "audit")
        answer: ProduceResponse = await connection.request(
            ApiKey.PRODUCE, message, version=PRODUCE_VERSION, timeout_ms=2 * PRODUCE_MS
        )
        for one in answer.responses:
            for part in one.partition_responses:
                if part.error_code:
                    raise RequestRejected(
                        ErrorCode(part.error_code),
                        f"{_named(to)} refused records for {topic}-{index}: {ErrorCode(part.error_code).name}.",
                    )

    async def refuses(self, endpoint: Endpoint) -> bool:
        try:
            async with asyncio.timeout(CONNECT_MS / 1000):
                _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False

    async def connection(self, to: BrokerImage, lane: str) -> KafkaConnection:
        """An open connection to a broker. Raises: NotSent."""
        assert lane in LANES, lane
        place = (to.host, to.port, lane)
        found = self._lanes.get(place)
        if found is not None and found.usable:
            return found
        lock = self._opening.setdefault(place, asyncio.Lock())
        async with lock:
            found = self._lanes.get(place)
            if found is not None and found.usable:
                return found
            if found is not None:
                await found.close()
                del self._lanes[place]
            try:
                opened = await open_connection(
                    to.host,
                    to.port,
                    client_id=f"firn-{lane}",
                    timeout_ms=PULSE_MS if lane == "pulse" else CONNECT_MS,
                    dial=self._dial,
                )
            except (BrokerUnavailable, RequestRejected) as error:
                raise NotSent(str(error)) from None
            self._lanes[place] = opened
            return opened

    async def close(self) -> None:
        lanes = list(self._lanes.values())
        self._lanes.clear()
        await asyncio.gather(*(one.close() for one in lanes))

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _ask(
        self, to: BrokerImage, lane: str, key: ApiKey, asked: msgspec.Struct, answer: type[T], timeout_ms: int
    ) -> T:
        return unpack(answer, await self._send(to, lane, key, pack(asked), timeout_ms))

    async def _send(self, to: BrokerImage, lane: str, key: ApiKey, message: Any, timeout_ms: int) -> Any:
        connection = await self.connection(to, lane)
        return await connection.request(key, message, version=BETWEEN_BROKERS[key][1], timeout_ms=timeout_ms)


def _named(broker: BrokerImage) -> str:
    return f"broker {broker.broker_id} at {broker.host}:{broker.port}"
