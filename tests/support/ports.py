"""Ports for servers whose port has to be known before they start."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path
from typing import Final

FIRST: Final = 10_000
LAST: Final = 65_535
_OUTGOING: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OUTGOING_USUALLY: Final = (32_768, 60_999)
_given: Final[set[int]] = set()
"""Ports that this process was given: whoever got one may not listen there yet."""


def free_port() -> int:
    """A port of the loopback on which nobody listens, and which nobody else is given: neither by the kernel nor by this function.

    Other tests make connections meanwhile, whose own ports come from ``ip_local_port_range``, as one asked for as port 0 would.
    Each process of the tests (``PYTEST_XDIST_WORKER``: gw0, gw1 …) has ports of its own.
    """
    try:
        low, high = map(int, _OUTGOING.read_text().split())
    except OSError:
        low, high = _OUTGOING_USUALLY
    ports = [*range(FIRST, low), *range(high + 1, LAST + 1)] or range(FIRST, LAST + 1)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = ports[worker :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    chance = random.SystemRandom()  # two processes that test with the same seed are not to meet
    while True:
        port = chance.choice(own)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
