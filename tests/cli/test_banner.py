"""What a person is told to type when a broker is ready works as it stands."""

from __future__ import annotations

import pytest

from app.cli.banner import banner, shown_listener
from app.configs import BrokerConfig
from app.configs.listeners import ListenerConfig, SecurityProtocol

PLAIN, TLS = SecurityProtocol.PLAINTEXT, SecurityProtocol.SSL
LOGIN, BOTH = SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL


def of(*listeners: tuple[str, SecurityProtocol], between: str = "") -> BrokerConfig:
    made = tuple(
        ListenerConfig(name=name, protocol=protocol, port=9000 + n) for n, (name, protocol) in enumerate(listeners)
    )
    return BrokerConfig(listeners=made, inter_broker_listener=between or (made[0].name if made else "PLAINTEXT"))


@pytest.mark.parametrize(
    ("config", "shown", "login"),
    [
        (of(), "PLAINTEXT", False),
        (of(("A", PLAIN)), "A", False),
        (of(("A", LOGIN)), "A", True),
        (of(("A", TLS)), "A", True),
        (of(("A", PLAIN), ("B", LOGIN)), "A", False),
        (of(("A", LOGIN), ("B", PLAIN)), "B", False),
        (of(("A", PLAIN), ("B", PLAIN)), "B", False),
        (of(("A", PLAIN), ("B", LOGIN), ("C", PLAIN), between="A"), "C", False),
        (of(("A", PLAIN), ("B", PLAIN), between="B"), "A", False),
        (of(("A", BOTH), ("B", LOGIN)), "B", True),
    ],
)
def test_the_banner_names_a_listener_that_needs_no_login_if_there_is_one(
    config: BrokerConfig, shown: str, login: bool
) -> None:
    found = config.served[shown_listener(config)]
    assert found.name == shown
    text = banner(config, node_id=1, kafka=f"h:{found.port}", cluster_id="c", stopped_by="Ctrl-C")
    firn = "firn --client-config client.properties" if login else "firn"
    assert f"| {firn} produce greetings -b h:{found.port}\n" in text
    assert f"  {firn} consume greetings -b h:{found.port}\n" in text
