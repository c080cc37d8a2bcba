"""What security costs: TLS, logins, rules and quotas."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from loadtests.bare_limits import FILE_BYTES, PIECE_BYTES
from loadtests.bare_tls import bare_tls, openssl_handshakes, python_handshakes
from loadtests.lab import BRIEF_WARM_UP, NOT_TIERED, Lab, told
from loadtests.measuring import Report, alternate, drop_topic, generate, make_topic
from loadtests.results import Case
from loadtests.secured_peer import (
    EVERYBODY,
    PREFIX,
    SecuredSystem,
    both_secured,
    firn_secured,
    flags,
    issue_certificates,
    limit,
)
from loadtests.system import System
from loadtests.workloads.fetch import HOT_MEGABYTES_FULL, HOT_MEGABYTES_QUICK
from loadtests.workloads.produce import (
    CONNECTED_IN_FLIGHT,
    MIDDLE,
    REQUEST_OVERHEAD_BYTES,
    SIZES,
    SMALL,
    TOUCHED_BY_SIZE,
    options_of,
)

ONE, MANY = 1, 50
HOT: Final = "TLS, hot fetch"
CONNECTED, LOGGED_IN = "TLS, new connections", "TLS, new connections that log in"
ALONE: Final = "client alone"
"""In place of a server: what the load can do over TLS if nobody else does anything."""
OFF: Final = "Firn, off"
TURNS: Final = 8
"""Of rules and quotas on and off, which are few percent apart."""


def produced(connections: int) -> str:
    """The name of a case."""
    return f"TLS, 16 KB, {connections} connection{'s' * (connections > 1)}"


def ruled(connections: int) -> str:
    """The name of a case."""
    return f"rules and quotas, 1 KB, {connections} connection{'s' * (connections > 1)}"


def run(lab: Lab) -> list[Case]:
    """SASL_SSL: TLS 1.3 (AES-256-GCM, a certificate with P-256), SCRAM-SHA-512, and the StandardAuthorizer with rules for the
    user, the same for Firn and Kafka. Idempotent Produce of 16 KB, acks=all, over one connection (32 in flight) and over 50
    (two each); fetch of 1 MiB at a time from the page cache by one consumer. `client alone` is the rate at which the load
    encrypts what a server would forget, or decrypts what was encrypted before: near it, the load is what is measured. `bare`
    receives, decrypts, appends and answers, over as many connections, or reads, encrypts and sends, in Python without a
    broker. New connections: eight at a time, each shakes hands, logs in by SCRAM in the second case, and ends; beside a loop
    that does nothing but handshakes with Python's `ssl`, and OpenSSL's s_server, which has one connection at a time. Then
    Produce of 1 KB to the plain listeners of two new brokers of Firn, which differ in this only: one has an authorizer with
    rules for the user, and quotas for the user and for each of its client ids (never reached); the other has neither. They take
    eight turns of three seconds each, after one that does not count."""
    certificates = issue_certificates(lab.base / "certificates")
    with both_secured(lab.base / "secured", certificates, lab.note) as found:
        for connections in (ONE, MANY):
            _produce(lab, found, certificates, connections)
        _fetch(lab, found, certificates)
        _connect(lab, found, certificates)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, lab.base / "ruled", ignore_errors=True)
        ruled_one = stack.enter_context(firn_secured(lab.base / "ruled" / "on", certificates))
        other = stack.enter_context(firn_secured(lab.base / "ruled" / "off", certificates, ruled=False))
        limit(ruled_one.tls, certificates, EVERYBODY)
        for connections in (ONE, MANY):
            _rules(lab, {"Firn": ruled_one.plain, OFF: other.plain}, connections)
    return lab.kept


def _options(size: str, connections: int) -> tuple[str, dict[str, Any]]:
    options = options_of(size)
    if connections == ONE:
        return "produce", options
    return "produce-many", options | {"pipeline": CONNECTED_IN_FLIGHT, "connections": connections}


def _produce(lab: Lab, found: Mapping[str, SecuredSystem], certificates: Path, connections: int) -> None:
    topic = f"{PREFIX}produce-{connections}"
    for name, both in found.items():
        make_topic(both.plain, topic, **NOT_TIERED.get(name, {}))
    work, options = _options(MIDDLE, connections)
    request_bytes = SIZES[MIDDLE][0] + REQUEST_OVERHEAD_BYTES
    with ExitStack() as stack:
        received, seconds = str(lab.base / "received"), lab.effort.seconds
        bare: dict[str, Callable[[], Report]]
        if connections == ONE:
            discard = stack.enter_context(bare_tls("discard", certificates))
            server = stack.enter_context(bare_tls("receive", certificates, received, str(request_bytes)))
            bare = {
                "bare": partial(server.produced, seconds, request_bytes, options["pipeline"]),
                ALONE: partial(discard.copied, seconds / 2),
            }
        else:
            what = received, str(request_bytes), str(connections)
            server = stack.enter_context(bare_tls("receive-many", certificates, *what, connections=connections))
            bare = {"bare": partial(server.produced_by_many, seconds, request_bytes, options["pipeline"])}
        lab.compare(
            produced(connections),
            {name: both.tls for name, both in found.items()},
            work,
            topic,
            parameters={"connections": connections, "request_bytes": SIZES[MIDDLE][0]},
            bare=bare,
            touched_bytes=TOUCHED_BY_SIZE[MIDDLE],
            **options | flags(certificates),
        )
    for both in found.values():
        drop_topic(both.plain, topic)


def _fetch(lab: Lab, found: Mapping[str, SecuredSystem], certificates: Path) -> None:
    topic = f"{PREFIX}hot"
    megabytes = HOT_MEGABYTES_QUICK if lab.quick else HOT_MEGABYTES_FULL
    for name, both in found.items():
        make_topic(both.plain, topic, **NOT_TIERED.get(name, {}))
        generate(
            both.plain, "produce", topic, batch_bytes=100_000, records=100, pipeline=3, megabytes=megabytes, warm_up=0
        )
    path = lab.base / "bare-send"
    path.write_bytes(os.urandom(PIECE_BYTES) * (FILE_BYTES // PIECE_BYTES))

    def alone() -> Report:
        with bare_tls("prepared", certificates) as prepared:
            return prepared.fetched(0.001)  # once

    with bare_tls("send", certificates, str(path)) as server:
        lab.compare(
            HOT,
            {name: both.tls for name, both in found.items()},
            "fetch",
            topic,
            parameters={"consumers": 1},
            bare={"bare": partial(server.fetched, lab.effort.variant_seconds), ALONE: alone},
            variant=True,
            rounds=lab.effort.rounds,
            max_bytes=1 << 20,
            **flags(certificates),
        )
    path.unlink()
    for both in found.values():
        drop_topic(both.plain, topic)


def _connect(lab: Lab, found: Mapping[str, SecuredSystem], certificates: Path) -> None:
    with ExitStack() as stack:
        systems = {name: both.tls for name, both in found.items()}
        bare = {"bare Python": stack.enter_context(python_handshakes(certificates))}
        if shutil.which("openssl"):
            bare["openssl s_server"] = stack.enter_context(openssl_handshakes(certificates))
        else:
            lab.note("OpenSSL's server is left out: no openssl here.")
        for name, user, others in ((CONNECTED, "", bare), (LOGGED_IN, "load", {})):
            _connections(lab, name, systems | others, flags(certificates, user))


def _connections(lab: Lab, name: str, systems: Mapping[str, System], options: dict[str, Any]) -> None:
    timing = {"seconds": lab.effort.variant_seconds, "warm_up": min(0.5, lab.effort.variant_seconds / 2)}
    brief = {"seconds": BRIEF_WARM_UP.slice_s, "warm_up": 0}
    for peer in systems.values():
        lab.warm(
            peer,
            lambda peer=peer: float(generate(peer, "connect", "", **options | brief)["connections_per_s"]),  # type: ignore[misc]
            BRIEF_WARM_UP,
        )
    runs = {system: partial(generate, peer, "connect", "", **options | timing) for system, peer in systems.items()}
    case = Case(name, alternate(runs, lab.effort.variant_rounds))
    for system, report in case.systems.items():
        told(name, system, {key: value for key, value in report.items() if key != "spread"})
    lab.kept.append(case)


def _rules(lab: Lab, systems: Mapping[str, System], connections: int) -> None:
    topic = f"{PREFIX}rules-{connections}"
    for peer in systems.values():
        make_topic(peer, topic, **NOT_TIERED["Firn"])
    work, options = _options(SMALL, connections)
    lab.compare(
        ruled(connections),
        systems,
        work,
        topic,
        parameters={"connections": connections, "request_bytes": SIZES[SMALL][0]},
        rounds=0 if lab.quick else TURNS,
        touched_bytes=TOUCHED_BY_SIZE[SMALL],
        **options,
    )
    for peer in systems.values():
        drop_topic(peer, topic)
