"""Addresses of IPv4 and IPv6, as they are compared. Pure.

A listener of both kinds (``::``) tells of a client of IPv4 by an address of IPv6 that has it inside (``::ffff:10.0.0.1``). Such an
address counts as what is inside, as in Java.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

ADDRESS_CHARS_MAX: Final = 64
"""An address of IPv6 has 45, and its zone some more."""
FORWARDED_HEADERS: Final = ("x-forwarded-for", "forwarded")
"""Headers in which proxies of HTTP name the addresses that a request came by."""


def read_address(text: str) -> IPv4Address | IPv6Address:
    """The address that a text names. Raises: ValueError."""
    found = ip_address(text)
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return found if mapped is None else mapped


def plain_address(text: str) -> str:
    """An address in its one form; any other text as it is."""
    if ":" not in text:
        return text  # addresses of IPv4 have one form
    try:
        return str(read_address(text))
    except ValueError:
        return text


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, and only this machine reaches it, also if names mean other machines elsewhere."""
    if host.lower() == "localhost":
        return True
    try:
        return read_address(host).is_loopback
    except ValueError:
        return False


def parse_networks(text: str) -> tuple[str, ...]:
    """The entries of a list of networks, ``10.0.0.0/24``, or of addresses, each in its one form. Raises: ValueError."""
    found = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry:
            continue
        try:
            network = ip_network(plain_address(entry))
        except ValueError as error:
            raise ValueError(f"{entry!r} is not an address or a network such as 10.0.0.0/24: {error}") from None
        if network.prefixlen == 0:
            raise ValueError(f"{entry!r} is the network of all addresses, so everybody would be in it")
        found.append(str(network) if network.num_addresses > 1 else str(network.network_address))
    return tuple(found)


class Networks:
    """A set of addresses."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """``entries``: as ``parse_networks`` returns them."""
        self._networks = tuple(ip_network(entry) for entry in entries)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: str) -> bool:
        """Whether it has an address. Text that is no address is not in it."""
        try:
            found = read_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._networks)
