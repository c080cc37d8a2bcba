"""Somebody who may log in, and may do nothing, tries to harm everybody else all the time, at each listener of each broker.

What is tried would be seen in the end if it were done: records that nobody else wrote, offsets that went back, members that keep
partitions to themselves, transactions that were ended, topics and users that are gone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from app.client.connection import KafkaConnection
from app.core.errors import BrokerUnavailable, ErrorCode, RequestRejected
from app.records.builder import build_batch
from app.wire.apikeys import ApiKey
from app.wire.framing import request_frame
from app.wire.principal import encode_principal
from tests.faults import share_load, transaction_load
from tests.interop.peers import make, request
from tests.support.cluster import PARTITIONS, WAIT_S, Brokers
from tests.support.rights import AUTHORIZATION
from tests.support.secured_cluster import Security, connected
from tests.support.threads import LoopThread

STRANGER: Final = "stranger"
PACE_S: Final = 0.05
ANSWER_MS: Final = 5_000
MEMBER: Final = str(UUID(int=7))
OF_BROKERS: Final = "listener between brokers"
OF_CLIENTS: Final = "listener of clients"


class Try(NamedTuple):
    label: str
    key: ApiKey
    version: int
    message: Any
    passed_on: bool = False
    """The controller alone decides. Without one, somebody is told so."""


def _records(value: bytes, **fields: Any) -> bytes:
    return build_batch([(1_700_000_000_000, None, value, ())], **fields)


def _produce(topic: str, records: bytes, transactional_id: str | None = None) -> Any:
    key = ApiKey.PRODUCE
    data = [make(key, "PartitionProduceData", index=index, records=records) for index in range(4)]
    topics = [make(key, "TopicProduceData", name=topic, partition_data=data)]
    return request(key, acks=-1, timeout_ms=1_000, topic_data=topics, transactional_id=transactional_id)


def _fetch(**fields: Any) -> Any:
    key = ApiKey.FETCH
    asked = [make(key, "FetchPartition", partition=index, partition_max_bytes=1_000) for index in range(PARTITIONS)]
    topics = [make(key, "FetchTopic", topic="t", partitions=asked)]
    return request(key, max_wait_ms=0, min_bytes=0, topics=topics, **fields)


def _commit() -> Any:
    """Nothing is read of a group's partitions as yet."""
    key = ApiKey.OFFSET_COMMIT
    asked = [make(key, "OffsetCommitRequestPartition", partition_index=index) for index in range(PARTITIONS)]
    return request(key, group_id="classic", topics=[make(key, "OffsetCommitRequestTopic", name="t", partitions=asked)])


def _join() -> Any:
    key = ApiKey.JOIN_GROUP
    protocols = [make(key, "JoinGroupRequestProtocol", name="range")]
    return request(
        key,
        group_id="classic",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=protocols,
    )


def _beat(key: ApiKey, group: str, **fields: Any) -> Any:
    return request(key, group_id=group, member_id=MEMBER, subscribed_topic_names=["t"], **fields)


def _markers() -> Any:
    key = ApiKey.WRITE_TXN_MARKERS
    topics = [make(key, "WritableTxnMarkerTopic", name="txn", partition_indexes=[*range(transaction_load.PARTITIONS)])]
    markers = [make(key, "WritableTxnMarker", producer_id=number, topics=topics) for number in range(10)]
    return request(key, markers=markers)


def _delete_records() -> Any:
    key = ApiKey.DELETE_RECORDS
    asked = [make(key, "DeleteRecordsPartition", partition_index=index, offset=-1) for index in range(PARTITIONS)]
    return request(key, topics=[make(key, "DeleteRecordsTopic", name="t", partitions=asked)], timeout_ms=1_000)


def _expire() -> Any:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    configs = [make(key, "AlterableConfig", name="retention.ms", value="1")]
    return request(
        key, resources=[make(key, "AlterConfigsResource", resource_type=2, resource_name="t", configs=configs)]
    )


def _slow_down() -> Any:
    key = ApiKey.ALTER_CLIENT_QUOTAS
    entity = [make(key, "EntityData", entity_type="user", entity_name="writer")]
    ops = [make(key, "OpData", key="producer_byte_rate", value=1.0)]
    return request(key, entries=[make(key, "AlterClientQuotasRequestEntryData", entity=entity, ops=ops)])


def _shrink() -> Any:
    key = ApiKey.ALTER_PARTITION
    asked = make(key, "AlterPartitionRequestPartitionData", new_isr=[1])
    return request(
        key, broker_id=1, broker_epoch=1, topics=[make(key, "AlterPartitionRequestTopicData", partitions=[asked])]
    )


def _rule(principal: str) -> Any:
    key = ApiKey.CREATE_ACLS
    made = make(
        key,
        "AclCreation",
        resource_type=2,
        resource_name="*",
        principal=principal,
        host="*",
        operation=2,
        permission_type=3,
    )
    return request(key, creations=[made])


_K = ApiKey
_FRAME = request_frame(_K.CREATE_ACLS, 3, 1, "test", _rule(f"User:{STRANGER}"))[4:]
TRIES: Final = [
    Try("write", _K.PRODUCE, 12, _produce("t", _records(b"-1"))),
    Try(
        "write in a transaction",
        _K.PRODUCE,
        12,
        _produce(
            "txn",
            _records(b"x 0", producer_id=0, producer_epoch=0, base_sequence=0, transactional=True),
            "writer-0",
        ),
    ),
    Try("read", _K.FETCH, 12, _fetch()),
    Try("follow", _K.FETCH, 12, _fetch(replica_id=2)),
    Try("commit", _K.OFFSET_COMMIT, 9, _commit()),
    Try("join", _K.JOIN_GROUP, 9, _join()),
    Try(
        "join by heartbeat",
        _K.CONSUMER_GROUP_HEARTBEAT,
        0,
        _beat(_K.CONSUMER_GROUP_HEARTBEAT, "consumer", rebalance_timeout_ms=30_000),
    ),
    Try("share", _K.SHARE_GROUP_HEARTBEAT, 1, _beat(_K.SHARE_GROUP_HEARTBEAT, share_load.GROUP)),
    Try("delete a group", _K.DELETE_GROUPS, 2, request(_K.DELETE_GROUPS, groups_names=["copy"])),
    Try(
        "fence a producer",
        _K.INIT_PRODUCER_ID,
        4,
        request(_K.INIT_PRODUCER_ID, transactional_id="writer-0", transaction_timeout_ms=60_000),
    ),
    Try("end a transaction", _K.END_TXN, 4, request(_K.END_TXN, transactional_id="writer-0", committed=True)),
    Try("write markers", _K.WRITE_TXN_MARKERS, 1, _markers()),
    Try("delete records", _K.DELETE_RECORDS, 2, _delete_records()),
    Try("shrink", _K.ALTER_PARTITION, 2, _shrink()),
    Try("stop a broker", _K.BROKER_HEARTBEAT, 1, request(_K.BROKER_HEARTBEAT, broker_id=1, want_fence=True)),
    Try(
        "speak as another",
        _K.ENVELOPE,
        0,
        request(
            _K.ENVELOPE,
            request_data=_FRAME,
            request_principal=encode_principal("User", "admin"),
            client_host_address=bytes([127, 0, 0, 1]),
        ),
    ),
    Try("delete a topic", _K.DELETE_TOPICS, 5, request(_K.DELETE_TOPICS, topic_names=["t"], timeout_ms=1_000), True),
    Try("get a right", _K.CREATE_ACLS, 3, _rule(f"User:{STRANGER}"), True),
    Try(
        "remove a user",
        _K.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        request(
            _K.ALTER_USER_SCRAM_CREDENTIALS,
            deletions=[make(_K.ALTER_USER_SCRAM_CREDENTIALS, "ScramCredentialDeletion", name="writer", mechanism=2)],
        ),
        True,
    ),
    Try("let records expire", _K.INCREMENTAL_ALTER_CONFIGS, 1, _expire(), True),
    Try("slow somebody down", _K.ALTER_CLIENT_QUOTAS, 1, _slow_down(), True),
]
BETWEEN_BROKERS: Final = {_K.ALTER_PARTITION, _K.BROKER_HEARTBEAT, _K.ENVELOPE}
"""A listener of clients does not serve them: it ends the connection."""


def errors_of(answer: Any) -> Iterator[int]:
    """All error codes of a response."""
    if isinstance(answer, list):
        for one in answer:
            yield from errors_of(one)
    elif dataclasses.is_dataclass(answer):
        for item in dataclasses.fields(answer):
            value = getattr(answer, item.name)
            if item.name == "error_code":
                yield value
            else:
                yield from errors_of(value)


class Strangers:
    """A thread in which the stranger is at every listener at once."""

    name = "refusals of strangers"
    between_brokers = False

    def __init__(self, brokers: Brokers, security: Security) -> None:
        self._security = security
        self._doors = [
            *((OF_CLIENTS, security.clients, address) for address in brokers.addresses.values()),
            *(
                (OF_BROKERS, security.between, f"{brokers.hosts[one]}:{port}")
                for one, port in brokers.inner_ports.items()
            ),
        ]
        self.refused: Counter[tuple[str, str]] = Counter()
        """By listener and what was tried."""
        self.turned_away = 0
        """Logins with a wrong password."""
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._thread = LoopThread(self._try_all)

    async def _try_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for door, protocol, address in self._doors:
                tasks.create_task(self._try(door, protocol, address))

    async def _try(self, door: str, protocol: str, address: str) -> None:
        secret = self._security.passwords[STRANGER]
        while not self._stop.is_set():
            try:
                if protocol == "SASL_SSL":
                    await self._guess(address)
                connection = await connected(address, self._security, STRANGER, secret, protocol=protocol)
                try:
                    for one in TRIES:
                        if door == OF_BROKERS or one.key not in BETWEEN_BROKERS:
                            await self._harm(connection, door, one)
                finally:
                    await connection.close()
            except BrokerUnavailable:
                await asyncio.sleep(PACE_S)  # it is hurt

    async def _guess(self, address: str) -> None:
        try:
            connection = await connected(address, self._security, "writer", "wrong")
        except RequestRejected as error:
            if error.code is not ErrorCode.SASL_AUTHENTICATION_FAILED:
                self.wrong.append(f"a wrong password: {error}")
            self.turned_away += 1
        else:
            await connection.close()
            self.wrong.append("a wrong password lets in")

    async def _harm(self, connection: KafkaConnection, door: str, one: Try) -> None:
        answer = await connection.request(one.key, one.message, version=one.version, timeout_ms=ANSWER_MS)
        errors = set(errors_of(answer))
        if errors & AUTHORIZATION and not errors - AUTHORIZATION - {ErrorCode.NONE}:
            self.refused[door, one.label] += 1
        elif not one.passed_on or not errors or ErrorCode.NONE in errors:
            self.wrong.append(
                f"{one.label} at the {door}: {[ErrorCode(error).name for error in errors]} {answer}"[:500]
            )
        await asyncio.sleep(PACE_S)

    def more(self) -> Callable[[], bool]:
        """Whether so much was refused since this call as is tried at one listener of one broker."""
        before = self.refused.total(), self.turned_away

        def holds() -> bool:
            self._thread.check()
            assert self.wrong == []
            return self.refused.total() > before[0] + len(TRIES) and self.turned_away > before[1]

        return holds

    def stop(self) -> None:
        """A second call does nothing."""
        self._stop.set()
        self._thread.join(WAIT_S)

    def check(self) -> None:
        """After ``stop``: everything was tried, and nothing was done."""
        self._thread.check()
        assert self.wrong == []
        tried: Mapping[str, set[str]] = {
            OF_BROKERS: {one.label for one in TRIES},
            OF_CLIENTS: {one.label for one in TRIES if one.key not in BETWEEN_BROKERS},
        }
        for door, labels in tried.items():
            assert {label for at, label in self.refused if at == door} == labels
