"""Three brokers in the test's own loop that check logins and rights, and what each of them writes and remembers.

Brokers log in to each other by SCRAM, each as a user of its own. Users of the tests log in by PLAIN, on the listener of clients or
on that between brokers, from an address that no broker has. So an audit line with the name or address of a broker is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from app.broker.peers.control_link import KafkaControlLink
from app.broker.peers.places import KafkaPlaces
from app.broker.security.first_users import write_first_users
from app.broker.security.listener_doors import inter_broker_dial
from app.configs import BrokerConfig
from app.configs.broker import STANDARD_AUTHORIZER
from app.configs.listeners import ListenerConfig
from app.core.units import BrokerId
from app.machine.files import PosixFileSystem
from app.metadata.image.records import SECURITY_LEVEL
from app.security.acls import WILDCARD, Operation, PatternType, Permission
from app.security.sasl import plain_message
from app.wire.apikeys import ApiKey
from app.wire.apis.create_acls import AclCreation, CreateAclsRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from app.wire.apis.sasl_authenticate import SaslAuthenticateRequest
from app.wire.apis.sasl_handshake import SaslHandshakeRequest
from tests.handlers.conversation import Talk, batch, talk
from tests.support.audited import Heard
from tests.support.broker import RunningBroker
from tests.support.rights import GONE, GROUP, OTHER, SEEN, TRANSACTION, Ids
from tests.support.secured import listener, security
from tests.support.secured_cluster import first_users, login, password
from tests.support.several import broker_on, unfenced
from tests.support.waiting import until

CLIENTS, BROKERS = "CLIENTS", "BROKERS"
"""Listeners."""
HOST, HOST_OF_BROKERS = "127.0.0.9", "127.0.0.1"
"""Where users connect from, and where brokers do."""
SASL: Final = "SASL_PLAINTEXT"
USERS = ("admin", "alice", "bob", "carol", "victim", *(f"no-{operation.name}" for operation in Operation))
"""Who may do everything; who may do what a test gives them; and who is only talked of."""
NODES = (1, 2, 3)
PRINCIPALS: Final = frozenset(f"User:broker-{node_id}" for node_id in NODES)
CONTROLLER, LEADER, FOLLOWER = NODES
"""Node ids: who is the controller, who leads all partitions and coordinates all groups and transactions, and who does neither."""
INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")

PLAIN_USERS = "x required " + " ".join(f'user_{user}="{password(user)}"' for user in USERS) + ";"


def doors(node_id: int, *more: ListenerConfig, clients: dict[str, Any]) -> dict[str, Any]:
    """Settings of a broker's listeners; ``more`` are besides those of brokers and clients."""
    own = {"scram-sha-512_sasl_jaas_config": login(f"broker-{node_id}", password(f"broker-{node_id}"))}
    return security(
        listener(SASL, name=BROKERS, mechanisms="SCRAM-SHA-512,PLAIN", plain_sasl_jaas_config=PLAIN_USERS, **own),
        listener(SASL, name=CLIENTS, **{"mechanisms": "PLAIN", "plain_sasl_jaas_config": PLAIN_USERS, **clients}),
        *more,
    )


class GuardedCluster:
    """Brokers 1 to 3, which have been still since they began."""

    def __init__(self, brokers: list[RunningBroker]) -> None:
        self.brokers = dict(zip(NODES, brokers, strict=True))
        self._heard = {key: Heard(broker.node.context.audit) for key, broker in self.brokers.items()}

    @property
    def controller(self) -> RunningBroker:
        (found,) = [broker for broker in self.brokers.values() if broker.node.membership.controller.active]
        return found

    @property
    def ids(self) -> Ids:
        return {topic.name: topic.topic_id for topic in self.controller.node.context.image.topics_by_name.values()}

    # --- asking -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def connected(self, node_id: int, listener: str = CLIENTS) -> AsyncIterator[Talk]:
        """A connection to a broker, without a login."""
        async with talk(self.brokers[node_id].node.ports[listener], local_addr=(HOST, 0)) as client:
            yield client

    @asynccontextmanager
    async def as_user(self, user: str, node_id: int, listener: str = CLIENTS) -> AsyncIterator[Talk]:
        """A connection to a broker on which a user has logged in. What was heard until then is forgotten."""
        async with self.connected(node_id, listener) as client:
            await client.ask(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
            message = SaslAuthenticateRequest(plain_message(user, password(user)))
            assert (await client.ask(ApiKey.SASL_AUTHENTICATE, 2, message)).error_code == 0
            self.take()
            yield client

    async def allow(
        self, *rights: tuple[int, int, str], user: str = "alice", host: str = WILDCARD, deny: bool = False
    ) -> None:
        """(operation, resource type, name) each, until every broker knows it."""
        permission = Permission.DENY if deny else Permission.ALLOW
        acls = [
            AclCreation(kind, name, PatternType.LITERAL, f"User:{user}", host, operation, permission)
            for operation, kind, name in rights
        ]
        async with self.as_user("admin", CONTROLLER) as admin:
            answer = await admin.ask(ApiKey.CREATE_ACLS, 3, CreateAclsRequest(acls))
        assert [one.error_code for one in answer.results] == [0] * len(acls)
        await self.level()
        self.take()

    async def level(self) -> None:
        """Wait until every broker knows all of the cluster log."""
        log = self.controller.node.cluster.log
        await until(
            lambda: {one.node.cluster.image.sequence for one in self.brokers.values()} == {log.next_sequence - 1}
        )

    async def still(self) -> None:
        """Wait until followers have what leaders have, and every broker knows all of the cluster log."""
        await until(lambda: len({repr(_ends(broker)) for broker in self.brokers.values()}) == 1)
        await self.level()

    @asynccontextmanager
    async def behind(self, node_id: int) -> AsyncIterator[None]:
        """A broker applies no new entry of the cluster log meanwhile, whoever brings it."""
        async with self.brokers[node_id].node.cluster.log._turn:
            yield

    # --- what is written and remembered -------------------------------------------------------------------------------

    def take(self) -> list[dict[str, Any]]:
        """The lines of all brokers since the last time."""
        return [line for heard in self._heard.values() for line in heard.take()]

    def take_one(self, about: object = None) -> dict[str, Any]:
        """The only line of all brokers, of one event. A broker may log in to another one at any time."""
        own = ("login", "done")
        lines = [
            one
            for one in self.take()
            if (one["event"], one.get("outcome")) != own or one["principal"] not in PRINCIPALS
        ]
        assert [line["count"] for line in lines] == [1], (about, lines)
        return lines[0]

    def state(self) -> Any:
        """All that a request could change, of every broker."""
        return {key: _state_of(broker) for key, broker in self.brokers.items()}


def _state_of(broker: RunningBroker) -> Any:
    node = broker.node
    context, image = node.context, node.context.image
    logs = {
        (str(log.topic_partition)): (log.log_start_offset, log.log_end_offset, log.leader_epoch)
        for log in context.logs.logs()
    }
    # A follower's session says what the follower has. Whoever takes its place has the follower begin again.
    followers = sorted((one.follower, one.id) for one in context.fetch_sessions._sessions.values() if one.follower)
    return (
        node.cluster.log.next_sequence,
        image.topics_by_id,
        image.brokers,
        (image.acls, image.scram_users, image.tokens, image.quotas),
        (image.broker_configs, image.group_configs, image.features),
        logs,
        followers,
        context.drain.state,
    )


@asynccontextmanager
async def guarded_cluster(
    path: Path,
    *more: ListenerConfig,
    clients: dict[str, Any] | None = None,
    supers: Iterable[str] = (),
    **settings: Any,
) -> AsyncIterator[GuardedCluster]:
    """``more`` listeners, settings of the listener of ``clients``, and further ``supers``, who may do everything."""
    named = [f"broker-{node_id}" for node_id in NODES]
    for name in ("b1", "b2", "b3"):
        write_first_users(PosixFileSystem(), str(path / name / "data"), first_users("victim", *named))
    settings = {
        "authorizer_class_name": STANDARD_AUTHORIZER,
        "super_users": ";".join(f"User:{user}" for user in ("admin", *named, *supers)),
        "auto_create_topics_enable": False,
        "auto_leader_rebalance_enable": False,
        "delegation_token_secret_key": "a secret of brokers",
        "security": {"connection.failed.authentication.delay.ms": "0"},
        **settings,
    }
    async with AsyncExitStack() as stack:
        brokers: list[RunningBroker] = []
        for node_id in NODES:
            of_doors = doors(node_id, *more, clients=clients or {})
            dial = inter_broker_dial(BrokerConfig(**of_doors))
            started = broker_on(
                path,
                f"b{node_id}",
                node_id=node_id,
                new_level=SECURITY_LEVEL,
                new_link=partial(KafkaControlLink, dial=dial),
                places=KafkaPlaces(dial=dial),
                **of_doors,
                **settings,
            )
            brokers.append(await stack.enter_async_context(started))
        for broker in brokers:
            await until(lambda broker=broker: unfenced(broker) == list(NODES))
        cluster = GuardedCluster(brokers)
        await _prepare(cluster)
        yield cluster
        for broker in brokers:
            await broker.kill()  # one after the other each would hand over what it leads


async def _prepare(cluster: GuardedCluster) -> None:
    """Make topics with a record each, a group and a transactional id, and wait until nobody has anything left to do."""
    assert cluster.controller is cluster.brokers[CONTROLLER]
    controller = cluster.controller.node.membership.controller
    order = [BrokerId(one) for one in (LEADER, FOLLOWER, CONTROLLER)]
    for name in (SEEN, OTHER, GONE, *INTERNAL):
        await controller.create_topic(name, assignments={0: order})
    await cluster.level()
    leader = cluster.brokers[LEADER]
    topics = leader.node.cluster.image.topics_by_name
    assert {topic.partitions[0].leader for topic in topics.values()} == {LEADER}
    await until(lambda: all(leader.node.partitions.table.led(name, 0) is not None for name in topics))
    async with cluster.as_user("admin", LEADER) as admin:
        answer = await admin.produce(9, [(name, [(0, batch())]) for name in (SEEN, OTHER, GONE)])
        assert {one.partition_responses[0].error_code for one in answer.responses} == {0}
        part = OffsetCommitRequestPartition(0, 1)
        commit = OffsetCommitRequest(GROUP, topics=[OffsetCommitRequestTopic(name=SEEN, partitions=[part])])
        begin = InitProducerIdRequest(TRANSACTION, 60_000)
        async with asyncio.timeout(60):
            while (await admin.ask(ApiKey.OFFSET_COMMIT, 9, commit)).topics[0].partitions[0].error_code:
                await asyncio.sleep(0.02)
            while (await admin.ask(ApiKey.INIT_PRODUCER_ID, 5, begin)).error_code:
                await asyncio.sleep(0.02)
    sessions = leader.node.context.fetch_sessions
    # Each follower has all partitions in one session, and has told that it has all their records.
    await until(
        lambda: (
            sum(len(one.partitions) == len(topics) and not one.restless for one in sessions._sessions.values())
            == len(NODES) - 1
        )
    )
    await cluster.still()
    cluster.take()


def _ends(broker: RunningBroker) -> list[tuple[str, int]]:
    return sorted((str(log.topic_partition), int(log.log_end_offset)) for log in broker.node.context.logs.logs())
