"""Certificates and passwords of a secured cluster are changed while clients write: no connection ends that need not."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tests.faults.test_cluster import SETTINGS, SHORT
from tests.support.cluster import NODES, Brokers, Writing, brokers_running, create_topics, until, wait_until_whole
from tests.support.secured import certificates
from tests.support.secured_cluster import DONE_S, ITERATIONS, Security, allow, lets_in, shown_certificate

pytestmark = pytest.mark.faults

READ_AGAIN = "has read its certificates again"


class Client:
    """A writer, and what it counts of its own connections."""

    def __init__(self, brokers: Brokers) -> None:
        self._ends: dict[int, int] = {}
        self._nodes = {f"127.0.0.1:{port}": node for node, port in brokers.ports.items()}
        told = {"statistics.interval.ms": 100, "stats_cb": self._count}
        self._told = 0
        self.writing = Writing(brokers.bootstrap, pace_s=0.01, client={**brokers.client, **told})
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
        until(lambda: self._told > before + 1, "the client counts its connections")
        return dict(self._ends)

    def finish(self) -> None:
        """And read with what gets in now."""
        self.writing.finish()
        self.writing.client = self._brokers.client
        self.writing.check(self._brokers.bootstrap)


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
    until(
        lambda: all(brokers.lines(node).count(READ_AGAIN) >= old + 2 for node, old in zip(NODES, before, strict=True)),
        "all brokers have read their certificates again",
    )


def times_read_again(brokers: Brokers) -> list[int]:
    return [brokers.lines(node).count(READ_AGAIN) for node in NODES]


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
    security = Security(tmp_path / "tls", between=between)
    new = certificates(tmp_path / "new")
    both = tmp_path / "both.pem"
    both.write_bytes((security.folder / "ca.pem").read_bytes() + (new / "ca.pem").read_bytes())
    security.authority = both
    with brokers_running(tmp_path, proxied=True, settings=SETTINGS | SHORT, security=security) as brokers:
        admin = brokers.admin
        create_topics(admin, "t")
        allow(admin, "t")
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
            replace_file(security.folder / "broker.pem", (new / "broker.pem").read_bytes())
            wait_until_read_again(brokers, seen)
            for port in (*brokers.ports.values(), *brokers.inner_ports.values()):
                if between == "SASL_SSL" or port in brokers.ports.values():
                    shown_certificate(port, new / "ca.pem")
            client.writing.wait_for_more()

            # A client's password.
            old = security.passwords["app"]
            change_password(admin, security, "app", "app-new")
            for port in brokers.ports.values():
                address = f"127.0.0.1:{port}"
                until(lambda address=address: lets_in(address, security, "app", "app-new"), "the new password is known")
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
                    address = f"127.0.0.1:{brokers.ports[node]}"
                    assert not lets_in(address, security, f"broker-{node}", old)
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
