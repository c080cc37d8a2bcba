"""Ports for servers whose port has to be known before they start."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

FIRST: Final = 10_000
LAST: Final = 65_535
_OUTGOING: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OUTGOING_USUALLY: Final = (32_768, 60_999)


def free_port() -> int:
    """A port of the loopback on which nobody listens, and which the kernel gives to nobody else until somebody does.

    Other tests make connections meanwhile, whose own ports come from ``ip_local_port_range``, as one asked for as port 0 would.
    """
    try:
        low, high = map(int, _OUTGOING.read_text().split())
    except OSError:
        low, high = _OUTGOING_USUALLY
    ports = [*range(FIRST, low), *range(high + 1, LAST + 1)] or range(FIRST, LAST + 1)
    chance = random.SystemRandom()  # two processes that test with the same seed are not to meet
    while True:
        with socket.socket() as probe:
            port = chance.choice(ports)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
