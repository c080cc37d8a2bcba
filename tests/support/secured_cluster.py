"""What makes a cluster of broker processes safe among strangers: certificates, users, rules and the key of the cluster log.

Clients log in by SCRAM over TLS. Brokers reach each other by SCRAM over TLS, each with a user of its own, or by certificates.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import ssl
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from app.broker.first_users import FirstUser, write_first_users
from app.client.connection import KafkaConnection, open_connection
from app.client.security import SecureDialer, client_security
from app.errors import ErrorCode, RequestRejected
from app.machine.files import PosixFileSystem
from app.security.scram import SALT_BYTES, ScramMechanism, credential_of, salted_password
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from tests.support.secured import certificates

ITERATIONS = 4096
SCRAM = "SCRAM-SHA-512"
USERS = ("admin", "app", "other", "broker-1", "broker-2", "broker-3")
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
DONE_S = 60.0


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


class Security:
    """Of one cluster."""

    def __init__(self, folder: Path, *, between: str = "SASL_SSL", redis: str = "") -> None:
        """With an authority, certificates and a key in ``folder``, which is new or has the certificates. ``between`` is how
        brokers reach each other, SASL_SSL or SSL. ``redis`` is the URL of the server with heartbeats and the tokens of quotas."""
        self.folder = folder
        self.between = between
        self.redis = redis
        self.passwords = {user: password(user) for user in USERS}
        """As they are now."""
        if not folder.exists():
            certificates(folder)
        key = folder / "log.key"
        key.write_bytes(base64.b64encode(os.urandom(32)))
        key.chmod(0o600)
        self.authority = folder / "ca.pem"
        """Whom clients trust."""

    def client(self, user: str) -> dict[str, Any]:
        """Settings of librdkafka with which a user gets in."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": SCRAM,
            "sasl.username": user,
            "sasl.password": self.passwords[user],
            "ssl.ca.location": str(self.authority),
        }

    def prepare(self, data_dir: Path) -> None:
        """Before the first start of a broker. Each broker needs the users: whoever is the first controller lets the others in."""
        write_first_users(PosixFileSystem(), str(data_dir), first_users(*USERS))

    def properties(self, directory: Path, node_id: int, port: int, inner_port: int) -> Path:
        """Write the settings of a broker."""
        settings = {
            "listeners": f"CLIENTS://127.0.0.1:{port},BROKERS://127.0.0.1:{inner_port}",
            "listener.security.protocol.map": f"CLIENTS:SASL_SSL,BROKERS:{self.between}",
            "inter.broker.listener.name": "BROKERS",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.pem"),
            "ssl.endpoint.identification.algorithm": "https",
            "sasl.enabled.mechanisms": SCRAM,
            "sasl.mechanism.inter.broker.protocol": SCRAM,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin",
            "firn.cluster.log.key.location": str(self.folder / "log.key"),
        }
        if self.between == "SASL_SSL":
            user = f"broker-{node_id}"
            settings["listener.name.brokers.scram-sha-512.sasl.jaas.config"] = login(user, self.passwords[user])
            settings["super.users"] += "".join(f";User:broker-{one}" for one in (1, 2, 3))
        else:
            settings["listener.name.brokers.ssl.client.auth"] = "required"
            settings["super.users"] += ";User:CN=broker"
        if self.redis:
            settings["firn.redis.url"] = self.redis
            settings["firn.quota.scope"] = "cluster"
        path = directory / "server.properties"
        directory.mkdir(exist_ok=True)
        path.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
        return path


def allow(admin: AdminClient, topic: str, user: str = "app") -> None:
    """Let a user write to a topic and read it with any group."""
    wanted = [
        (ResourceType.TOPIC, topic, AclOperation.WRITE),
        (ResourceType.TOPIC, topic, AclOperation.READ),
        (ResourceType.GROUP, "*", AclOperation.READ),
    ]
    made = admin.create_acls(
        [
            AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
            for kind, name, operation in wanted
        ]
    )
    for one in made.values():
        one.result(DONE_S)


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


async def connected(bootstrap: str, security: Security, user: str, secret: str) -> KafkaConnection:
    """To the first of some brokers."""
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": SCRAM,
        "sasl.username": user,
        "sasl.password": secret,
        "ssl.truststore.location": str(security.authority),
    }
    return await open_connection(host, int(port), dial=SecureDialer(client_security(settings)))


def shown_certificate(port: int, authority: Path) -> bytes:
    """What a broker shows to a client that trusts this authority alone."""
    context = ssl.create_default_context(cafile=str(authority))
    with (
        socket.create_connection(("127.0.0.1", port), DONE_S) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as wrapped,
    ):
        found = wrapped.getpeercert(binary_form=True)
        assert found is not None
        return found
