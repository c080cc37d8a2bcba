"""All that clients do to a cluster at once: producers, consumer groups of both protocols, a share group, transactions, compaction.

Each kind of client is a user of its own, who may do just what ``RIGHTS`` has, where brokers ask who somebody is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final

from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from tests.faults import keyed_load, share_load, transaction_load
from tests.faults.group_load import PROTOCOLS, Groups
from tests.faults.keyed_load import Keyed
from tests.faults.share_load import Shares
from tests.faults.stand_stills import Partition
from tests.faults.transaction_load import Transactions
from tests.support.cluster import WAIT_S, Brokers, Writing, create_topics, seen
from tests.support.cluster_faults import Faults, Load
from tests.support.secured_cluster import Right
from tests.support.waiting import block_until

TOPICS: Final = (
    *("t", "txn", "copy", keyed_load.TOPIC),
    *("__consumer_offsets", "__transaction_state", "__share_group_state"),
)
"""All that there are. Those of coordinators are in the object store as soon as another one is."""
SHORT: Final = {
    "broker_heartbeat_interval_ms": 250,
    "broker_session_timeout_ms": 1_500,
    "group_initial_rebalance_delay_ms": 0,
    "group_consumer_heartbeat_interval_ms": 500,
    "group_consumer_min_heartbeat_interval_ms": 500,
    "group_share_heartbeat_interval_ms": 500,
    "group_share_min_heartbeat_interval_ms": 500,
}
"""So that tests wait less."""
SETTINGS: Final = SHORT | share_load.SETTINGS | transaction_load.SETTINGS | keyed_load.SETTINGS
"""Of a broker."""


def _topic(operation: AclOperation, name: str) -> Right:
    return Right(operation, ResourceType.TOPIC, name)


def _group(name: str) -> Right:
    return Right(AclOperation.READ, ResourceType.GROUP, name)


def _transactions(name: str, pattern: ResourcePatternType = ResourcePatternType.LITERAL) -> Right:
    return Right(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name, pattern)


RIGHTS: Final[Mapping[str, Sequence[Right]]] = {
    "writer": [_topic(AclOperation.WRITE, "t")],
    "reader": [_topic(AclOperation.READ, "t"), *(_group(name) for name in PROTOCOLS)],
    "worker": [_topic(AclOperation.READ, "t"), _group(share_load.GROUP)],
    "appender": [_topic(AclOperation.WRITE, "txn"), _transactions("writer-", ResourcePatternType.PREFIXED)],
    "keeper": [
        _topic(AclOperation.WRITE, keyed_load.TOPIC),
        _topic(AclOperation.READ, keyed_load.TOPIC),
        _group(keyed_load.GROUP),
    ],
    "copier": [
        _topic(AclOperation.READ, "txn"),
        _topic(AclOperation.WRITE, "copy"),
        _group("copy"),
        _transactions("copier"),
    ],
}
"""What each user may do, and nothing else."""


def need_two_in_sync(admin: AdminClient, topic: str) -> None:
    """Once there is the topic. By default one is enough for committed offsets, as in Kafka. Then the in-sync set may shrink to one
    broker while others are slow, and groups stand still, or go on at older offsets, when that one dies."""
    block_until(lambda: topic in seen(admin).topics, f"{topic} is there")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    resource.add_incremental_config(
        ConfigEntry("min.insync.replicas", "2", incremental_operation=AlterConfigOpType.SET)
    )
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)


class OneLoad:
    """A producer, and nobody else, on a new topic. ``admin``, who may do everything, looks at what came of it.

    ``config`` is of each topic, ``tiered`` of those that are not compacted, with ``_`` for ``.``.
    ``one_by_one``: as of ``Writing``.
    """

    def __init__(
        self,
        brokers: Brokers,
        *,
        config: Mapping[str, str] | None = None,
        tiered: Mapping[str, str] | None = None,
        one_by_one: bool = False,
    ) -> None:
        every = config or {}
        self.in_store: Collection[str] = TOPICS if every.get("firn_durability") == "object" else ()
        """Topics whose records are on no disk."""
        self._create = partial(create_topics, brokers.admin, in_store=self.in_store, **every)
        self._create("t", **(tiered or {}))
        self._bootstrap, self._admin = brokers.bootstrap, brokers.client_of("admin")
        client = brokers.client_of("writer")
        self._writing = Writing(brokers.bootstrap, pace_s=0.04, one_by_one=one_by_one, client=client)
        self.loads: list[Load] = [self._writing]

    @property
    def acknowledged(self) -> int:
        """Records of the producer."""
        return sum(len(found) for found in self._writing.acknowledged)

    def counts(self) -> dict[Partition, int]:
        """How many records of producers with ``acks=all`` were acknowledged so far, by partition."""
        return {("t", index): len(found) for index, found in enumerate(self._writing.acknowledged)}

    @property
    def book(self) -> Sequence[Mapping[int, int]]:
        """What the producer's numbers are acknowledged at, per partition: offset by number."""
        return self._writing.acknowledged

    def know(self, faults: Faults) -> None:
        """These are done to the brokers."""

    def finish(self) -> None:
        """Write no more, and wait until all was written."""
        self._writing.finish()

    def stop(self) -> None:
        """After ``finish`` it does nothing."""
        self._writing.finish()

    def check(self) -> None:
        """After ``finish``: nothing that was acknowledged is lost."""
        self._writing.check(self._bootstrap, self._admin)


class EveryLoad(OneLoad):
    """A producer and all other kinds of clients."""

    def __init__(
        self,
        brokers: Brokers,
        seed: int,
        *,
        config: Mapping[str, str] | None = None,
        tiered: Mapping[str, str] | None = None,
        one_by_one: bool = False,
    ) -> None:
        super().__init__(brokers, config=config, tiered=tiered, one_by_one=one_by_one)
        self._create("txn", "copy", partitions=transaction_load.PARTITIONS, **(tiered or {}))
        self._create(keyed_load.TOPIC, partitions=keyed_load.PARTITIONS, **keyed_load.CONFIG)
        of = brokers.client_of
        self._groups = Groups(brokers.bootstrap, self._writing, client=of("reader"))
        if not self.in_store:
            need_two_in_sync(brokers.admin, "__consumer_offsets")
        self.shares = Shares(brokers.bootstrap, self._writing, seed, client=of("worker"), admin=self._admin)
        self._transactions = Transactions(
            brokers.bootstrap, seed, writer=of("appender"), copier=of("copier"), reader=self._admin
        )
        self._keyed = Keyed(brokers.bootstrap, seed, one_by_one=one_by_one, client=of("keeper"))
        self.loads = [self._writing, self._groups, self.shares, self._transactions, self._keyed]

    def counts(self) -> dict[Partition, int]:
        keyed = {(keyed_load.TOPIC, index): count for index, count in enumerate(self._keyed.acknowledged)}
        return super().counts() | keyed

    def know(self, faults: Faults) -> None:
        self.shares.book.phase = faults.phase

    def finish(self) -> None:
        """Write no more, and wait until all was written, read, acknowledged and copied."""
        self._writing.finish()
        self._groups.finish()
        self.shares.finish()
        self._transactions.finish()
        self._keyed.finish()

    def stop(self) -> None:
        """After ``finish`` it does nothing."""
        for load in (self._groups, self.shares, self._transactions, self._keyed):
            load.stop()
        self._writing.finish()

    def check(self) -> None:
        """After ``finish``: nothing that was acknowledged is lost, went back, or was done twice."""
        self._writing.check(self._bootstrap, self._admin)
        self._groups.check()
        self.shares.check()
        self._transactions.check()
        self._keyed.check()
