"""What makes a cluster of broker processes safe among strangers: certificates, users, rules and the key of the cluster log.

Clients log in by SCRAM over TLS, or show certificates. Brokers reach each other by SCRAM over TLS, each with a user of its own, or
by certificates. Each broker has its own address and certificate, which is good for no other address.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import ssl
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from app.broker.security.first_users import FirstUser, write_first_users
from app.client.connection import KafkaConnection, open_connection
from app.client.security import SecureDialer, client_security
from app.core.errors import ErrorCode, RequestRejected
from app.machine.files import PosixFileSystem
from app.security.scram import SALT_BYTES, ScramMechanism, credential_of, salted_password
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.framing import request_frame
from tests.support.secured import add_certificate, certificates, revocations

ITERATIONS = 4096
SCRAM = "SCRAM-SHA-512"
NODES = (1, 2, 3)
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
DONE_S = 60.0
AUDIT_LOG = "audit.log"


def password(user: str) -> str:
    """Of one of the first users."""
    return f"{user}-secret"


def login(user: str, secret: str) -> str:
    """A value of ``sasl.jaas.config``."""
    return f'{MODULE} required username="{user}" password="{secret}";'


def first_users(*names: str) -> list[FirstUser]:
    """What is kept of their passwords."""
    kind = ScramMechanism.of(SCRAM)
    made = []
    for name in names:
        salt = os.urandom(SALT_BYTES)
        salted = salted_password(kind, password(name), salt, ITERATIONS)
        made.append(FirstUser(name, int(kind), credential_of(kind, salted, salt, ITERATIONS)))
    return made


def host(node_id: int) -> str:
    """The address of a broker."""
    return f"127.0.0.{node_id}"


def all_certificates(folder: Path, *users: str) -> Path:
    """A folder with an authority and certificates of users and of each broker. ``broker.pem`` is for servers beside the brokers."""
    certificates(folder, *users)
    for node_id in NODES:
        add_certificate(folder, f"broker-{node_id}", host(node_id))
    return folder


class Security:
    """Of one cluster."""

    def __init__(
        self, folder: Path, *users: str, clients: str = "SASL_SSL", between: str = "SASL_SSL", revokes: bool = False
    ) -> None:
        """With an authority, certificates and a key in ``folder``, which is new.

        ``users`` are there beside ``admin``, who may do everything. ``clients`` and ``between`` are how clients, and brokers,
        reach brokers: SASL_SSL or SSL. ``revokes``: with a list of revoked certificates, which has none at first.
        """
        self.folder = folder
        self.clients = clients
        self.between = between
        self.redis = ""
        """URL of the server with heartbeats and the tokens of quotas, if there is one."""
        users = ("admin", *users)
        self.passwords = {user: password(user) for user in (*users, *(f"broker-{one}" for one in NODES))}
        """As they are now."""
        self.brokers_are_super = True
        """Whether brokers need no rule, from their next start on."""
        all_certificates(folder, *users)
        self.revoked = folder / "revoked.pem" if revokes else None
        if self.revoked is not None:
            self.revoked.write_bytes(revocations(folder))
        key = folder / "log.key"
        key.write_bytes(base64.b64encode(os.urandom(32)))
        key.chmod(0o600)
        self.authority = folder / "ca.pem"
        """Whom clients trust."""

    @staticmethod
    def host(node_id: int) -> str:
        return host(node_id)

    def principal(self, user: str) -> str:
        """Of a client."""
        return f"User:{user}" if self.clients == "SASL_SSL" else f"User:CN={user}"

    def broker_principal(self, node_id: int) -> str:
        return f"User:broker-{node_id}" if self.between == "SASL_SSL" else f"User:CN=broker-{node_id}"

    def certificate(self, name: str) -> Path:
        """The file of a user's or a broker's certificate, with its private key."""
        return self.folder / f"{name}.pem"

    def client(self, user: str) -> dict[str, Any]:
        """Settings of librdkafka with which a user gets in."""
        if self.clients == "SSL":
            own = str(self.certificate(user))
            return {
                "security.protocol": "SSL",
                "ssl.ca.location": str(self.authority),
                "ssl.certificate.location": own,
                "ssl.key.location": own,
            }
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": SCRAM,
            "sasl.username": user,
            "sasl.password": self.passwords[user],
            "ssl.ca.location": str(self.authority),
        }

    def prepare(self, data_dir: Path) -> None:
        """Before the first start of a broker. Each broker needs the users: whoever is the first controller lets the others in."""
        write_first_users(PosixFileSystem(), str(data_dir), first_users(*self.passwords))

    def properties(self, directory: Path, node_id: int, port: int, inner_port: int) -> Path:
        """Write the settings of a broker."""
        supers = [self.principal("admin")]
        if self.brokers_are_super:
            supers += [self.broker_principal(one) for one in NODES]
        at = host(node_id)
        settings = {
            "listeners": f"CLIENTS://{at}:{port},BROKERS://{at}:{inner_port}",
            "listener.security.protocol.map": f"CLIENTS:{self.clients},BROKERS:{self.between}",
            "inter.broker.listener.name": "BROKERS",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificate(f"broker-{node_id}")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.pem"),
            "ssl.endpoint.identification.algorithm": "https",
            "sasl.enabled.mechanisms": SCRAM,
            "sasl.mechanism.inter.broker.protocol": SCRAM,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ";".join(supers),
            "firn.cluster.log.key.location": str(self.folder / "log.key"),
            "firn.http.listen": "off",
            "firn.audit.log.path": str(directory / AUDIT_LOG),
        }
        if self.between == "SASL_SSL":
            user = f"broker-{node_id}"
            settings["listener.name.brokers.scram-sha-512.sasl.jaas.config"] = login(user, self.passwords[user])
        else:
            settings["listener.name.brokers.ssl.client.auth"] = "required"
        if self.clients == "SSL":
            settings["listener.name.clients.ssl.client.auth"] = "required"
        if self.revoked is not None:
            settings["firn.ssl.crl.location"] = str(self.revoked)
        if self.redis:
            settings["firn.redis.url"] = self.redis
            settings["firn.quota.scope"] = "cluster"
        path = directory / "server.properties"
        directory.mkdir(exist_ok=True)
        path.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
        return path


class Right(NamedTuple):
    """What somebody may do."""

    operation: AclOperation
    kind: ResourceType
    name: str
    pattern: ResourcePatternType = ResourcePatternType.LITERAL


def give(admin: AdminClient, principal: str, *rights: Right) -> None:
    """Add rules."""
    made = admin.create_acls(
        [
            AclBinding(one.kind, one.name, one.pattern, principal, "*", one.operation, AclPermissionType.ALLOW)
            for one in rights
        ]
    )
    for one in made.values():
        one.result(DONE_S)


def take_all(admin: AdminClient, principal: str) -> None:
    """Delete all rules of somebody."""
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, principal, None, AclOperation.ANY, AclPermissionType.ANY
    )
    for one in admin.delete_acls([every]).values():
        assert one.result(DONE_S)


def allow(admin: AdminClient, topic: str, principal: str) -> None:
    """Let somebody write to a topic and read it with any group."""
    give(
        admin,
        principal,
        Right(AclOperation.WRITE, ResourceType.TOPIC, topic),
        Right(AclOperation.READ, ResourceType.TOPIC, topic),
        Right(AclOperation.READ, ResourceType.GROUP, "*"),
    )


def denied(directory: Path) -> Counter[str]:
    """How often each principal was refused something, by the audit log of a broker. A broker that is killed does not tell all."""
    found: Counter[str] = Counter()
    for line in (directory / AUDIT_LOG).read_text().splitlines():
        told = json.loads(line)
        if told["event"] == "access" and told["outcome"] == "denied":
            found[told["principal"]] += told["count"]
    return found


def give_quota(bootstrap: str, security: Security, user: str, rate: float) -> None:
    """Limit how many bytes a second a user may write."""
    entity = [EntityData("user", user)]
    entry = AlterClientQuotasRequestEntryData(entity, [OpData("producer_byte_rate", rate)])

    async def ask() -> None:
        connection = await connected(bootstrap, security, "admin", security.passwords["admin"])
        answer = await connection.request(ApiKey.ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest([entry]))
        await connection.close()
        assert [one.error_code for one in answer.entries] == [0]

    asyncio.run(ask())


def lets_in(address: str, security: Security, user: str, secret: str) -> bool:
    """Whether a broker lets somebody in."""

    async def ask() -> bool:
        try:
            connection = await connected(address, security, user, secret)
        except RequestRejected as error:
            if error.code is not ErrorCode.SASL_AUTHENTICATION_FAILED:
                raise
            return False
        await connection.close()
        return True

    return asyncio.run(ask())


def knows_right(address: str, security: Security, user: str, topic: str) -> bool:
    """Whether a broker knows already that a user may do something with a topic. Who asks one that does not is refused."""
    asked = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)

    async def ask() -> bool:
        secret = security.passwords[user]
        connection = await connected(address, security, user, secret, protocol=security.clients)
        answer = await connection.request(ApiKey.METADATA, asked)
        await connection.close()
        [found] = answer.topics
        return bool(found.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    return asyncio.run(ask())


async def connected(
    bootstrap: str, security: Security, user: str, secret: str, *, protocol: str = "SASL_SSL"
) -> KafkaConnection:
    """To the first of some addresses. With SSL, the user's certificate stands for the secret."""
    at, _, port = bootstrap.split(",")[0].rpartition(":")
    settings = {"security.protocol": protocol, "ssl.truststore.location": str(security.authority)}
    if protocol == "SASL_SSL":
        settings |= {"sasl.mechanism": SCRAM, "sasl.username": user, "sasl.password": secret}
    else:
        settings["ssl.keystore.location"] = str(security.certificate(user))
    return await open_connection(at, int(port), dial=SecureDialer(client_security(settings)))


def refusal_of(address: str, authority: Path, certificate: Path) -> str:
    """Why a broker does not let in who shows this certificate, as OpenSSL calls it; nothing if it does."""
    context = ssl.create_default_context(cafile=str(authority))
    context.load_cert_chain(certificate)
    at, _, port = address.rpartition(":")
    try:
        with (
            socket.create_connection((at, int(port)), DONE_S) as raw,
            context.wrap_socket(raw, server_hostname=at) as wrapped,
        ):
            # A broker looks at the certificate when the client believes that the handshake is over.
            wrapped.sendall(request_frame(ApiKey.API_VERSIONS, 0, 1, "test", ApiVersionsRequest()))
            assert wrapped.recv(4)
    except ssl.SSLError as error:
        return error.reason
    return ""


def shown_certificate(at: str, port: int, authority: Path) -> bytes:
    """What a broker shows to a client that trusts this authority alone."""
    context = ssl.create_default_context(cafile=str(authority))
    with (
        socket.create_connection((at, port), DONE_S) as raw,
        context.wrap_socket(raw, server_hostname=at) as wrapped,
    ):
        found = wrapped.getpeercert(binary_form=True)
        assert found is not None
        return found
