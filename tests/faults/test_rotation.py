"""Certificates and passwords of a secured cluster are changed, and certificates revoked, while clients write: no connection ends
that need not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from app.client.connection import KafkaConnection
from app.core.errors import ErrorCode
from app.wire.apikeys import ApiKey
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from tests.faults.every_load import SHORT
from tests.faults.quick_cluster import SETTINGS
from tests.support.cluster import (
    NODES,
    Brokers,
    Writing,
    brokers_running,
    controller_of,
    create_topics,
    seen,
    wait_until_whole,
)
from tests.support.secured import add_certificate, revocations
from tests.support.secured_cluster import (
    AUDIT_LOG,
    DONE_S,
    ITERATIONS,
    Security,
    all_certificates,
    allow,
    connected,
    knows_right,
    lets_in,
    refusal_of,
    shown_certificate,
    take_all,
)
from tests.support.waiting import block_until

pytestmark = pytest.mark.faults

PATIENCE_MS = 60_000
"""A connection is not given up because a machine stands still for a while: here each that ends counts."""
READ_AGAIN = "has read its certificates again"
GOES_ON = "goes on with its old certificates"


def allow_to_write(brokers: Brokers, security: Security, user: str, topic: str) -> None:
    """And wait until every broker knows that."""
    allow(brokers.admin, topic, security.principal(user))
    for address in brokers.addresses.values():
        block_until(lambda address=address: knows_right(address, security, user, topic), f"{address} knows the rule")


def patient_brokers(path: Path, security: Security) -> AbstractContextManager[Brokers]:
    """A machine that stands still for a moment fences none of them."""
    settings = SETTINGS | SHORT | {"broker_session_timeout_ms": 10_000}
    return brokers_running(path, proxied=True, settings=settings, security=security, patience_ms=PATIENCE_MS)


class Client:
    """A writer, and what it counts of its own connections."""

    def __init__(self, brokers: Brokers, user: str = "app", topic: str = "t") -> None:
        self._ends: dict[int, int] = {}
        self._nodes = {address: node for node, address in brokers.addresses.items()}
        told = {"statistics.interval.ms": 100, "stats_cb": self._count, "socket.timeout.ms": PATIENCE_MS}
        self._told = 0
        self.writing = Writing(brokers.bootstrap, topic, pace_s=0.01, client={**brokers.client_of(user), **told})
        self._brokers = brokers

    def _count(self, text: str) -> None:
        ends = dict.fromkeys(NODES, 0)
        for one in json.loads(text)["brokers"].values():
            if one["nodename"] in self._nodes:
                ends[self._nodes[one["nodename"]]] += one["disconnects"]
        self._ends = ends
        self._told += 1

    def ends(self) -> dict[int, int]:
        """How many connections to each broker have ended until now."""
        before = self._told
        block_until(lambda: self._told > before + 1, "the client counts its connections")
        return dict(self._ends)

    def finish(self) -> None:
        """And look at all that it wrote."""
        self.writing.finish()
        self.writing.check(self._brokers.bootstrap, self._brokers.client_of("admin"))


class Open:
    """A connection to each broker by a user's certificate."""

    def __init__(self, runner: asyncio.Runner, brokers: Brokers, security: Security, user: str) -> None:
        self._runner = runner
        addresses = brokers.addresses.values()

        async def connect() -> list[KafkaConnection]:
            return [await connected(address, security, user, "", protocol="SSL") for address in addresses]

        self._connections = runner.run(connect())

    def told(self, topic: str) -> set[int]:
        """How the brokers answer who asks for a topic."""

        async def ask() -> set[int]:
            asked = MetadataRequest([MetadataRequestTopic(name=topic)])
            answers = [await one.request(ApiKey.METADATA, asked) for one in self._connections]
            return {found.error_code for answer in answers for found in answer.topics}

        return self._runner.run(ask())

    def close(self) -> None:
        async def close() -> None:
            for one in self._connections:
                await one.close()

        self._runner.run(close())


def replace_file(path: Path, data: bytes) -> None:
    """At once."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(data)
    new.chmod(0o600)
    os.replace(new, path)


def change_password(admin: AdminClient, security: Security, user: str, secret: str) -> None:
    change = UserScramCredentialUpsertion(
        user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS), secret.encode()
    )
    for one in admin.alter_user_scram_credentials([change]).values():
        one.result(DONE_S)
    security.passwords[user] = secret


def wait_until_read_again(brokers: Brokers, before: Sequence[int]) -> None:
    """By both listeners of each broker."""
    block_until(
        lambda: all(brokers.lines(node).count(READ_AGAIN) >= old + 2 for node, old in zip(NODES, before, strict=True)),
        "all brokers have read their certificates again",
    )


def times_read_again(brokers: Brokers) -> list[int]:
    return [brokers.lines(node).count(READ_AGAIN) for node in NODES]


def is_trusted(host: str, port: int, authority: Path) -> bool:
    """Whether a broker shows a certificate of this authority."""
    try:
        return bool(shown_certificate(host, port, authority))
    except ssl.SSLCertVerificationError:
        return False


def ended_between(brokers: Brokers) -> dict[tuple[int, int], int]:
    """Connections between brokers that have ended until now."""
    assert brokers.links is not None
    return dict(brokers.links.ended)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("between", "restarted"),
    [
        ("SASL_SSL", NODES[:1]),
        pytest.param("SASL_SSL", NODES, marks=pytest.mark.slow),
        pytest.param("SSL", NODES, marks=pytest.mark.slow),
    ],
)
def test_certificates_and_passwords_change_under_load(tmp_path: Path, between: str, restarted: Sequence[int]) -> None:
    security = Security(tmp_path / "tls", "app", between=between)
    new = all_certificates(tmp_path / "new")
    both = tmp_path / "both.pem"
    both.write_bytes((security.folder / "ca.pem").read_bytes() + (new / "ca.pem").read_bytes())
    security.authority = both
    with patient_brokers(tmp_path, security) as brokers:
        admin = brokers.admin
        create_topics(admin, "t")
        allow_to_write(brokers, security, "app", "t")
        client = Client(brokers)
        try:
            client.writing.wait_for_more()
            ends, between_brokers = client.ends(), ended_between(brokers)

            # The new authority beside the old one, first, and when all know it, certificates of it.
            seen = times_read_again(brokers)
            replace_file(security.folder / "ca.pem", both.read_bytes())
            if between == "SSL":  # else nobody is asked for a certificate, and who asks for one looks before
                wait_until_read_again(brokers, seen)
                seen = times_read_again(brokers)
            for node in NODES:
                own = security.certificate(f"broker-{node}")
                replace_file(own, (new / own.name).read_bytes())
            wait_until_read_again(brokers, seen)
            for ports in (brokers.ports, brokers.inner_ports):
                if between == "SASL_SSL" or ports is brokers.ports:
                    for node, port in ports.items():
                        # What was read again may have been the authorities alone, if the rest came much later.
                        place = brokers.hosts[node], port
                        block_until(
                            lambda place=place: is_trusted(*place, new / "ca.pem"), f"{place} shows the new one"
                        )
            client.writing.wait_for_more()

            # A client's password.
            old = security.passwords["app"]
            change_password(admin, security, "app", "app-new")
            for address in brokers.addresses.values():
                block_until(
                    lambda address=address: lets_in(address, security, "app", "app-new"), "the new password is known"
                )
                assert not lets_in(address, security, "app", old)
            client.writing.wait_for_more()
            client.writing.producer.set_sasl_credentials("app", "app-new")

            assert client.ends() == ends, "all connections of the client are the first ones"
            assert ended_between(brokers) == between_brokers, "and so are those between brokers"

            # Passwords of brokers, one after the other: the new password, and then a start with it. Their connections
            # that are open stay open until then.
            for node in restarted:
                before, ends_before = ended_between(brokers), client.ends()
                if between == "SASL_SSL":
                    old = security.passwords[f"broker-{node}"]
                    change_password(admin, security, f"broker-{node}", f"broker-{node}-new")
                    client.writing.wait_for_more()
                    assert ended_between(brokers) == before
                brokers.end(node, signal.SIGTERM)
                brokers.start(node)
                wait_until_whole(admin, f"broker {node} has started again")
                client.writing.wait_for_more()
                if between == "SASL_SSL":
                    assert not lets_in(brokers.addresses[node], security, f"broker-{node}", old)
                lost = {
                    way: count - before.get(way, 0)
                    for way, count in ended_between(brokers).items()
                    if node not in way and count > before.get(way, 0)
                }
                assert lost == {}, f"only connections of broker {node} have ended"
                others = [other for other in NODES if other != node]
                now = client.ends()
                assert [now[other] for other in others] == [ends_before[other] for other in others]
        finally:
            client.writing.finish()
        client.finish()


REVOKED = "SSLV3_ALERT_CERTIFICATE_REVOKED"


@pytest.mark.ci
def test_a_certificate_is_revoked_under_load(tmp_path: Path) -> None:
    """Nothing new is let in with it. What it has open goes on, until its rights are taken. Nobody else notices."""
    security = Security(tmp_path / "tls", "app", "stolen", clients="SSL", between="SSL", revokes=True)
    assert security.revoked is not None
    with (
        patient_brokers(tmp_path, security) as brokers,
        asyncio.Runner() as runner,
    ):
        admin = brokers.admin
        create_topics(admin, "t", "u")
        allow_to_write(brokers, security, "app", "t")
        allow_to_write(brokers, security, "stolen", "u")

        def refusals(name: str) -> list[str]:
            """What each broker says to a new connection."""
            certificate = security.certificate(name)
            return [refusal_of(address, security.authority, certificate) for address in brokers.addresses.values()]

        clients = [Client(brokers, "app", "t"), Client(brokers, "stolen", "u")]
        app, stolen = clients
        try:
            for client in clients:
                client.writing.wait_for_more()
            assert [refusals(name) for name in ("app", "stolen")] == [[""] * 3] * 2
            open_ones = Open(runner, brokers, security, "stolen")
            ends, between_brokers = [client.ends() for client in clients], ended_between(brokers)

            seen = times_read_again(brokers)
            replace_file(security.revoked, revocations(security.folder, "stolen"))
            wait_until_read_again(brokers, seen)
            assert refusals("stolen") == [REVOKED] * 3
            assert refusals("app") == [""] * 3
            add_certificate(security.folder, "stolen-2", subject="stolen")
            assert refusals("stolen-2") == [""] * 3, "another one of the same name"
            for client in clients:
                client.writing.wait_for_more()
            assert [client.ends() for client in clients] == ends, "open connections go on"
            assert ended_between(brokers) == between_brokers

            # A list that cannot be read lets nobody in again, and keeps nobody out.
            stolen.finish()
            replace_file(security.revoked, b"broken")
            block_until(
                lambda: all(GOES_ON in brokers.lines(node) for node in NODES), "all brokers have met the broken list"
            )
            assert brokers.links is not None
            brokers.links.reset(brokers.links.ports)
            assert refusals("stolen") == [REVOKED] * 3
            app.writing.wait_for_more()
            wait_until_whole(admin, "brokers have reached each other with the old list")

            # What its open connections can do ends with its rights.
            assert open_ones.told("u") == {ErrorCode.NONE}
            take_all(admin, security.principal("stolen"))
            block_until(
                lambda: open_ones.told("u") == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}, "no broker lets it do more"
            )
            app.writing.wait_for_more()
            assert app.ends() == ends[0]
            open_ones.close()
        finally:
            for client in clients:
                client.writing.finish()
        app.finish()


@pytest.mark.slow
@pytest.mark.parametrize("of_controller", [False, True])
def test_a_brokers_own_certificate_is_revoked_under_load(tmp_path: Path, of_controller: bool) -> None:
    """No other broker talks to it any more, and the cluster goes on. With a new certificate it is back."""
    security = Security(tmp_path / "tls", "app", clients="SSL", between="SSL", revokes=True)
    assert security.revoked is not None
    with brokers_running(tmp_path, proxied=True, settings=SETTINGS | SHORT, security=security) as brokers:
        admin = brokers.admin
        create_topics(admin, "t")
        allow_to_write(brokers, security, "app", "t")
        client = Client(brokers)
        try:
            client.writing.wait_for_more()
            controller = controller_of(admin)
            victim = controller if of_controller else next(node for node in NODES if node != controller)
            others = [node for node in NODES if node != victim]
            inner = {node: f"{brokers.hosts[node]}:{brokers.inner_ports[node]}" for node in NODES}
            own = security.certificate(f"broker-{victim}")
            assert [refusal_of(inner[node], security.authority, own) for node in others] == ["", ""]

            seen_before = times_read_again(brokers)
            replace_file(security.revoked, revocations(security.folder, own.stem))
            wait_until_read_again(brokers, seen_before)
            assert [refusal_of(inner[node], security.authority, own) for node in others] == [REVOKED] * 2
            client.writing.wait_for_more()
            assert brokers.links is not None
            brokers.links.reset(brokers.links.apart([victim], NODES))  # open connections go on until they end
            rest = AdminClient(
                {
                    "bootstrap.servers": ",".join(brokers.addresses[node] for node in others),
                    **brokers.client_of("admin"),
                }
            )

            def led_by() -> set[int]:
                topic = seen(rest).topics.get("t")
                return {victim} if topic is None else {one.leader for one in topic.partitions.values()}

            block_until(lambda: victim not in led_by(), "the others lead all that it has led")
            block_until(lambda: set(seen(rest).brokers) == set(others), "no other broker counts on it")
            if of_controller:
                assert controller_of(rest) in others
            client.writing.wait_for_more()
            block_until(
                lambda: all(refused_by_tls(brokers, node) for node in others), "each has refused it, and says so"
            )
            assert set(seen(rest).brokers) == set(others), "it has not come back by itself"

            renewed = add_certificate(security.folder, "renewed", brokers.hosts[victim], subject=own.stem)
            replace_file(own, renewed.read_bytes())
            wait_until_whole(rest, "it has a new certificate")
            client.writing.wait_for_more()
        finally:
            client.writing.finish()
        client.finish()


def refused_by_tls(brokers: Brokers, node: int) -> bool:
    """Whether the audit log of a broker has somebody whose certificate is revoked."""
    lines = (brokers.path / f"broker-{node}" / AUDIT_LOG).read_text().splitlines()
    told = [json.loads(line) for line in lines]
    return any(one["outcome"] == "failed" and "revoked" in one.get("reason", "") for one in told)
