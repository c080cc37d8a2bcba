"""The limits of connections: their text is read, wrong ones are refused, and those of single listeners are found."""

from __future__ import annotations

import re

import pytest

from app.configs import BrokerConfig
from app.configs.connection_limits import (
    ADDRESSES_MAX,
    by_listener,
    check_connection_limits,
    connections_by_address,
)
from app.configs.listeners import ListenerConfig
from app.configs.numbers import INT_MAX
from app.core.errors import ErrorCode, RequestRejected

SETTING = "max.connections"


def test_limits_of_addresses_are_read() -> None:
    assert connections_by_address("") == {}
    assert connections_by_address(f" 10.0.0.1:5 ,, [::1]:0, fe80::2:{INT_MAX}") == {
        "10.0.0.1": 5,
        "::1": 0,
        "fe80::2": INT_MAX,
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("host:5", "'host:5' must be ADDRESS:NUMBER"),
        ("10.0.0.1", "'10.0.0.1' must be ADDRESS:NUMBER"),
        ("10.0.0.1:", "'10.0.0.1:' must end with a number"),
        ("10.0.0.1:-1", "'10.0.0.1:-1' must end with a number"),
        ("10.0.0.1:١", "must end with a number"),
        (f"10.0.0.1:{INT_MAX + 1}", "must end with a number"),
    ],
)
def test_wrong_limits_of_addresses_are_refused(text: str, why: str) -> None:
    with pytest.raises(RequestRejected, match=re.escape(why)) as refused:
        connections_by_address(text)
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_the_number_of_addresses_is_limited() -> None:
    entries = [f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:1" for number in range(ADDRESSES_MAX + 1)]
    assert len(connections_by_address(",".join(entries[1:]))) == ADDRESSES_MAX
    with pytest.raises(RequestRejected, match=f"At most {ADDRESSES_MAX} addresses"):
        connections_by_address(",".join(entries))


def test_no_connections_may_be_allowed_only_if_some_addresses_may_connect() -> None:
    check_connection_limits(BrokerConfig())
    check_connection_limits(BrokerConfig(max_connections_per_ip=0, max_connections_per_ip_overrides="10.0.0.1:1"))
    with pytest.raises(RequestRejected, match="can be set to zero only if"):
        check_connection_limits(BrokerConfig(max_connections_per_ip=0))


def test_limits_of_single_listeners_are_their_own_ones_and_those_set_later() -> None:
    listeners = (
        ListenerConfig(name="OWN", settings={SETTING: "3"}, own=frozenset({SETTING})),
        ListenerConfig(name="GENERAL", settings={SETTING: "4"}),
        ListenerConfig(name="EMPTY", settings={SETTING: ""}, own=frozenset({SETTING})),
    )
    broker = BrokerConfig(
        listeners=listeners,
        security={"listener.name.later.max.connections": "7", "listener.name.later.other": "8", SETTING: "9"},
    )
    assert by_listener(broker, SETTING) == {"OWN": 3, "LATER": 7}
