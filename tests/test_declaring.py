"""A setting is declared once, as a field; its definition is made from that (``app/configs/declaring.py``, ``defining.py``)."""

from __future__ import annotations

import ast
import typing
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

import pytest

from app.configs import BrokerConfig, TopicConfig
from app.configs.broker_definitions import BROKER_DEFINITIONS
from app.configs.declaring import DECLARED, setting
from app.configs.defining import definitions_of
from app.configs.kinds import ConfigType, Importance, Synonym, Update
from app.configs.topic_definitions import TOPIC_BY_SYNONYM, TOPIC_DEFINITIONS
from app.configs.values import format_value
from app.core.errors import ConfigError
from app.settings import unknown_name

ROOT = Path(__file__).parents[1]
WHOLE = {ConfigType.INT, ConfigType.SHORT, ConfigType.LONG}
TEXT = {ConfigType.STRING, ConfigType.PASSWORD}


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    first_time_ms: int = setting(5, ConfigType.INT, "Time.", minimum=1, kafka_default="7", importance=Importance.HIGH)
    colour: Colour = setting(Colour.RED, ConfigType.STRING, "Colour.", "log.colour", Synonym("log.colours", 2))
    secret: str = setting("", ConfigType.PASSWORD, "Secret.", name="my.secret.key")
    idle: bool = setting(False, ConfigType.BOOLEAN, "Idle.", idle="it is never read")
    other: int = 3


def test_a_definition_has_all_that_its_field_declares() -> None:
    first, colour, secret, idle = definitions_of(Settings)
    assert (first.name, first.field, first.type, first.default) == ("first.time.ms", "first_time_ms", ConfigType.INT, 5)
    assert (first.minimum, first.importance, first.update) == (1, Importance.HIGH, Update.READ_ONLY)
    assert first.documentation == "Time. Firn's own default is 5; Kafka's is 7."
    assert colour.choices == ("red", "blue")
    assert colour.synonyms == ()
    assert (secret.name, secret.field) == ("my.secret.key", "secret")
    assert idle.documentation == "Idle. Without effect: it is never read."


def test_a_setting_of_a_topic_can_be_altered_and_has_a_broker_wide_name() -> None:
    first, colour, *_ = definitions_of(Settings, of_topics=True)
    assert first.synonyms == (Synonym("first.time.ms"),)
    assert colour.synonyms == (Synonym("log.colour"), Synonym("log.colours", 2))
    assert first.update is Update.CLUSTER_WIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    alone: bool = setting(False, ConfigType.BOOLEAN, "Alone.", of_topic_alone=True)


def test_a_setting_of_single_topics_has_no_broker_wide_name() -> None:
    [alone] = definitions_of(TopicSettings, of_topics=True)
    assert (alone.synonyms, alone.update) == ((), Update.CLUSTER_WIDE)
    assert "confluent.value.schema.validation" not in TOPIC_BY_SYNONYM
    with pytest.raises(ConfigError, match=r"is set per topic, and has no default of brokers\."):
        raise unknown_name("confluent.value.schema.validation")


def test_a_password_is_not_in_the_representation_of_settings() -> None:
    assert "hidden" not in repr(Settings(secret="hidden"))
    assert "first_time_ms=5" in repr(Settings())


@pytest.mark.parametrize("kind", [TopicConfig, BrokerConfig])
def test_the_type_of_a_setting_is_that_of_its_field(kind: type) -> None:
    annotations = typing.get_type_hints(kind)
    table = TOPIC_DEFINITIONS if kind is TopicConfig else BROKER_DEFINITIONS
    declared = {one.name for one in fields(kind) if DECLARED in one.metadata}
    assert {one.field for one in table.values()} - {""} == declared
    wrong = []
    for definition in table.values():
        if not definition.field:
            continue
        held = {one for one in typing.get_args(annotations[definition.field]) if one is not type(None)}
        annotation = annotations[definition.field]
        match definition.type:
            case kind_ if kind_ in WHOLE:
                right = annotation is int
            case ConfigType.DOUBLE:
                right = annotation is float
            case ConfigType.BOOLEAN:
                right = annotation is bool
            case ConfigType.LIST:
                right = typing.get_origin(annotation) in (frozenset, tuple)
            case _:
                right = held == {str} if held else issubclass(annotation, str)
        if not right:
            wrong.append(definition.name)
    assert wrong == []


def numbers_of_listeners() -> Iterator[tuple[str, int]]:
    """Calls of ``ListenerConfig.number``: the setting and the default that is given."""
    for path in sorted((ROOT / "app").rglob("*.py")):
        text = path.read_text()
        if ".number(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="number"),
                    args=[ast.Constant(value=str(name)), ast.Constant(value=int(default))],
                ):
                    yield name, default


def test_defaults_that_listeners_are_given_are_those_of_the_definitions() -> None:
    found = list(numbers_of_listeners())
    assert len(found) > 5
    assert [
        (name, default) for name, default in found if format_value(BROKER_DEFINITIONS[name].default) != str(default)
    ] == []
