"""Addresses of IPv4 and IPv6, as they are compared. Pure.

A listener of both kinds (``::``) tells of a client of IPv4 by an address of IPv6 that has it inside (``::ffff:10.0.0.1``). Such an
address counts as what is inside, as in Java.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address


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
    """Whether a host is this machine, and only this machine reaches it, whatever names mean elsewhere."""
    if host.lower() == "localhost":
        return True
    try:
        return read_address(host).is_loopback
    except ValueError:
        return False
