"""The definitions of a broker's settings, and which of them a listener has of its own."""

from __future__ import annotations

import pytest

from app.configs.broker_definitions import BROKER_DEFINITIONS, definition_of_listener


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("max.connections", "max.connections"),
        ("max.connection.creation.rate", "max.connection.creation.rate"),
        ("ssl.keystore.location", "ssl.keystore.location"),
        ("sasl.enabled.mechanisms", "sasl.enabled.mechanisms"),
        ("scram-sha-256.sasl.jaas.config", "sasl.jaas.config"),
        ("oauthbearer.sasl.jaas.config", "sasl.jaas.config"),
    ],
)
def test_a_setting_of_a_listener_is_defined_as_the_brokers(setting: str, name: str) -> None:
    found = definition_of_listener(setting)
    assert found is not None
    assert found.name == name
    assert found is BROKER_DEFINITIONS[name]


@pytest.mark.parametrize("setting", ["listeners", "log.dirs", "plain.log.dirs", "no.such.setting", ""])
def test_other_settings_are_none_of_a_listener(setting: str) -> None:
    assert definition_of_listener(setting) is None


def test_settings_of_several_fields_are_defined_too() -> None:
    listeners = BROKER_DEFINITIONS["listeners"]
    assert (listeners.field, listeners.default) == ("", "PLAINTEXT://127.0.0.1:9092")
    assert "PLAINTEXT://:9092" in listeners.documentation
    assert all(name == definition.name for name, definition in BROKER_DEFINITIONS.items())
