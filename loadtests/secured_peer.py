"""Firn and Kafka with the same security: SASL_SSL with SCRAM-SHA-512, and the StandardAuthorizer with rules for the user.

Each has a plain listener, too. At Firn's, everybody is a user with rules and quotas like any other (``User:ANONYMOUS``), so that
what those cost can be measured without TLS. Kafka's controller knows its broker by that name, so there it is a superuser.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.broker.security.first_users import FirstUser, write_first_users
from app.cli.tls import issue
from app.configs.broker import STANDARD_AUTHORIZER
from app.machine.files import PosixFileSystem
from app.security.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from app.security.scram import ITERATIONS_MIN, SALT_BYTES, credential_of, salted_password
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from app.wire.apis.create_acls import AclCreation, CreateAclsRequest
from loadtests.firn_peer import firn_running
from loadtests.kafka_peer import PeerMissing, kafka_running
from loadtests.measuring import SERVER_CORE
from loadtests.raw_tls import MECHANISM, Secured, client_context
from loadtests.raw_wire import Wire
from loadtests.system import System, free_port, wait_for_port

ADMIN, USER, EVERYBODY = "admin", "load", "ANONYMOUS"
PASSWORDS = {ADMIN: "admin-secret", USER: "load-secret"}
"""They protect nothing but brokers on loopback, while they are measured."""
PREFIX = "secured-"
"""Of the topics that the rules are for."""
LIMITS = {"producer_byte_rate": 1e12, "consumer_byte_rate": 1e12, "request_percentage": 1e6}
"""So high that nobody ever waits."""
PORT_TIMEOUT_S = 20.0
USERS_TIMEOUT_S = 20.0
RULES = (
    *((ResourceType.TOPIC, PREFIX, PatternType.PREFIXED, one) for one in (Operation.WRITE, Operation.READ)),
    *((ResourceType.TOPIC, PREFIX, PatternType.PREFIXED, one) for one in (Operation.CREATE, Operation.DELETE)),
    (ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL, Operation.IDEMPOTENT_WRITE),
)


@dataclass(frozen=True, slots=True)
class SecuredSystem:
    """A system, and where it asks for a login."""

    plain: System
    tls: System


def flags(certificates: Path, user: str = USER) -> dict[str, Any]:
    """The generators', to connect with TLS, and to log in if a user is named."""
    login = {"user": user, "password": PASSWORDS[user]} if user else {}
    return {"tls_authority": certificates / "ca.pem"} | login


def _settings(certificates: Path, port: int, tls_port: int, *, ruled: bool = True) -> dict[str, str]:
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{tls_port}",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": MECHANISM.sasl_name,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates / "broker.pem"),
        "ssl.enabled.protocols": "TLSv1.3",
    }
    if ruled:
        settings |= {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": f"User:{ADMIN}"}
    return settings


def issue_certificates(directory: Path) -> Path:
    """A folder with an authority and a broker's certificate (P-256)."""
    issue(directory, hosts=["localhost", "127.0.0.1"], clients=["client"], now=datetime.now(UTC))
    return directory


@contextmanager
def firn_secured(directory: Path, certificates: Path, *, ruled: bool = True) -> Iterator[SecuredSystem]:
    """``ruled``: whether it has an authorizer, with rules for the users. Raises: SystemFailed."""
    port, tls_port = free_port(), free_port()
    users = []
    for name, password in PASSWORDS.items():
        salt = name.encode().ljust(SALT_BYTES)
        salted = salted_password(MECHANISM, password, salt, ITERATIONS_MIN)
        users.append(FirstUser(name, int(MECHANISM), credential_of(MECHANISM, salted, salt, ITERATIONS_MIN)))
    (directory / "data").mkdir(parents=True)
    write_first_users(PosixFileSystem(), str(directory / "data"), users)
    settings = _settings(certificates, port, tls_port, ruled=ruled)
    with firn_running(directory, cores=str(SERVER_CORE), settings=settings, port=port) as system:
        found = SecuredSystem(system, replace(system, port=tls_port))
        _wait_for_users(found.tls, certificates)
        if ruled:
            allow(found.tls, certificates, USER, EVERYBODY)
        yield found


@contextmanager
def kafka_secured(directory: Path, certificates: Path) -> Iterator[SecuredSystem]:
    """Raises: PeerMissing."""
    port, tls_port, controller_port = free_port(), free_port(), free_port()
    settings = _settings(certificates, port, tls_port)
    settings |= {
        "listeners": f"{settings['listeners']},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": settings["listeners"],
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "super.users": f"User:{ADMIN};User:{EVERYBODY}",
        f"listener.name.sasl_ssl.{MECHANISM.sasl_name.lower()}.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }
    users = [f"{MECHANISM.sasl_name}=[name={name},password={password}]" for name, password in PASSWORDS.items()]
    with kafka_running(directory, core=SERVER_CORE, settings=settings, port=port, users=users) as system:
        found = SecuredSystem(system, replace(system, port=tls_port))
        wait_for_port(tls_port, PORT_TIMEOUT_S)  # Kafka opens one listener after the other
        allow(found.tls, certificates, USER)
        yield found


@contextmanager
def both_secured(
    directory: Path, certificates: Path, note: Callable[[str], None]
) -> Iterator[Mapping[str, SecuredSystem]]:
    """Firn, and Kafka if it is there, on the server's core."""
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        found = {"Firn": stack.enter_context(firn_secured(directory / "firn", certificates))}
        try:
            found["Kafka"] = stack.enter_context(kafka_secured(directory / "kafka", certificates))
        except PeerMissing as missing:
            note(f"Apache Kafka is left out: {missing}.")
        yield found


def _wait_for_users(system: System, certificates: Path) -> None:
    """A first start makes its users shortly after it listens. Raises: SystemExit."""
    deadline = time.monotonic() + USERS_TIMEOUT_S
    while True:
        try:
            Wire(system.host, system.port, _login(certificates))
            return
        except SystemExit:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _login(certificates: Path) -> Secured:
    return Secured(client_context(str(certificates / "ca.pem")), ADMIN, PASSWORDS[ADMIN])


def _ask(system: System, certificates: Path, key: ApiKey, version: int, message: object) -> Any:
    return Wire(system.host, system.port, _login(certificates)).ask(key, version, message)


def allow(system: System, certificates: Path, *users: str) -> None:
    """Give users the rights that the measurements need. Raises: SystemExit."""
    creations = [
        AclCreation(int(kind), name, int(pattern), f"User:{user}", "*", int(operation), int(Permission.ALLOW))
        for user in users
        for kind, name, pattern, operation in RULES
    ]
    answer = _ask(system, certificates, ApiKey.CREATE_ACLS, 3, CreateAclsRequest(creations))
    if any(one.error_code for one in answer.results):
        raise SystemExit(f"CreateAcls answers {answer.results}")


def limit(system: System, certificates: Path, *users: str) -> None:
    """Give users quotas, and each of their client ids quotas of its own. Raises: SystemExit."""
    operations = [OpData(key, value) for key, value in LIMITS.items()]
    entities = [[EntityData("user", user), *also] for user in users for also in ([], [EntityData("client-id", None)])]
    entries = [AlterClientQuotasRequestEntryData(entity, operations) for entity in entities]
    answer = _ask(system, certificates, ApiKey.ALTER_CLIENT_QUOTAS, 1, AlterClientQuotasRequest(entries))
    if any(one.error_code for one in answer.entries):
        raise SystemExit(f"AlterClientQuotas answers {answer.entries}")
