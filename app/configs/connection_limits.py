"""The limits of connections that an operator has set, those of single addresses and of single listeners, too. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.configs.broker import BrokerConfig
from app.configs.listeners import split_prefixed
from app.configs.numbers import INT_MAX
from app.configs.values import invalid_value
from app.core.addresses import read_address

OVERRIDES: Final = "max.connections.per.ip.overrides"
ADDRESSES_MAX: Final = 10_000
"""In one setting."""


def connections_by_address(text: str) -> Mapping[str, int]:
    """Read ``ADDRESS:NUMBER,…``. Raises: RequestRejected INVALID_CONFIG."""
    limits: dict[str, int] = {}
    for entry in (part.strip() for part in text.split(",")):
        if not entry:
            continue
        host, _, number = entry.rpartition(":")
        try:
            address = read_address(host.strip().removeprefix("[").removesuffix("]"))
        except ValueError:
            raise invalid_value(
                OVERRIDES,
                text,
                f"{entry!r} must be ADDRESS:NUMBER, as in 10.0.0.1:100. Names of hosts are not looked up",
            ) from None
        if not (number.strip().isascii() and number.strip().isdecimal() and int(number) <= INT_MAX):
            raise invalid_value(OVERRIDES, text, f"{entry!r} must end with a number of connections")
        limits[str(address)] = int(number)
    if len(limits) > ADDRESSES_MAX:
        raise invalid_value(OVERRIDES, f"of {len(limits)} addresses", f"At most {ADDRESSES_MAX} addresses are allowed")
    return limits


def check_connection_limits(broker: BrokerConfig) -> None:
    """Raises: RequestRejected INVALID_CONFIG."""
    overrides = connections_by_address(broker.max_connections_per_ip_overrides)
    if broker.max_connections_per_ip == 0 and not overrides:
        raise invalid_value(
            "max.connections.per.ip",
            0,
            f"It can be set to zero only if {OVERRIDES} names the addresses that may connect",
        )


def by_listener(broker: BrokerConfig, setting: str) -> Mapping[str, int]:
    """The values given for single listeners (``listener.name.<name>.<setting>``), by the listeners' names."""
    given = {
        one.name: int(one.settings[setting]) for one in broker.served if setting in one.own and one.settings[setting]
    }
    for name, text in broker.security.items():
        parts = split_prefixed(name)
        if parts is not None and parts[1] == setting:
            given[parts[0]] = int(text)
    return given
