"""The broker's child processes: how they are started. ``app/machine/children.py`` watches them.

A child inherits one end of a socket pair and, where it works on the data directory, that directory's lock: so no new broker starts
beside children of an old one that still run.

Tests: ``tests/broker/test_secrets.py``.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from app.configs.environment import PREFIX
from app.core.notices import FORMAT_VARIABLE
from app.machine.children import Child
from app.machine.interpreter import python_command, python_environment

OF_THE_STORE: Final = "AWS_"
"""How variables begin that let a process into the bucket."""
OF_TRACES: Final = "OTEL_"
"""How variables of OpenTelemetry begin, the login at the collector among them. A child inherits none."""
OF_COLLECTOR: Final = tuple(
    f"OTEL_EXPORTER_OTLP_{signal}{name}"
    for signal in ("", "TRACES_")
    for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY", "HEADERS")
)
"""Variables by which spans reach the collector. The HTTP process is given these if the broker traces."""


def collector_environment(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The part of the broker's environment that a child needs to send spans."""
    return {name: environment[name] for name in OF_COLLECTOR if environment.get(name)}


def inherited_environment(environment: Mapping[str, str], *, opens_store: bool) -> Mapping[str, str]:
    """The part of the broker's environment that a child inherits.

    A child inherits no settings: they may be secrets (logins, private keys, the URL of Redis), and a child reads none that it was
    not handed. The format of the log is handed on. Only the child that opens the store inherits the credentials of the bucket:
    another one faces the network.
    """
    dropped = (PREFIX, OF_TRACES) if opens_store else (PREFIX, OF_TRACES, OF_THE_STORE)
    kept = {name: text for name, text in environment.items() if not name.startswith(dropped)}
    if FORMAT_VARIABLE in environment:
        kept[FORMAT_VARIABLE] = environment[FORMAT_VARIABLE]
    return kept


def broker_child(
    name: str,
    command: Callable[[int], Sequence[str]],
    *,
    inherited: Sequence[int],
    rng: random.Random,
    log_line: Callable[[str], None],
    connected: Callable[[socket.socket], Awaitable[None]] | None = None,
    environment: Mapping[str, str] | None = None,
    opens_store: bool = False,
) -> Child:
    """A child that runs Python. ``command`` makes module and arguments from the number of the child's end of the socket pair.
    ``environment`` is added to the variables that it inherits (``inherited_environment``). All else is as for ``Child``."""
    given = environment or {}
    return Child(
        name,
        lambda descriptor: python_command(*command(descriptor)),
        environment=lambda: {**inherited_environment(python_environment(), opens_store=opens_store), **given},
        inherited=inherited,
        rng=rng,
        log_line=log_line,
        connected=connected,
    )
