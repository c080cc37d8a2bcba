"""What Apache Kafka's own classes can be set to, beside what Firn knows of it; and Java's reader of properties beside ours."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from app.configs.broker_definitions import BROKER_DEFINITIONS
from app.configs.kinds import Update
from app.configs.properties import parse_properties
from app.configs.security_definitions import SECURITY_DEFINITIONS
from app.configs.topic_definitions import TOPIC_BY_SYNONYM, TOPIC_DEFINITIONS
from app.configs.values import format_value, parse_value
from app.configs.without_effect import BROKER_WITHOUT_EFFECT, TOPIC_WITHOUT_EFFECT
from app.settings import ALIASES, catalogue
from app.wire.versions import SERVED
from tests.interop.java_programs import JavaProgram, running

pytestmark = pytest.mark.interop

FIXED_HERE = {"listeners"}
"""Kafka can alter these while it runs, and Firn takes them when it starts."""
OF_OTHER_BROKERS = {
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "super.users",
    "allow.everyone.if.no.acl.found",
}
OF_FIRN = {"wal.linger.ms", "wal.bytes", "wal.buffer.bytes", "wal.retention.bytes"}
"""Not defined by Kafka: it takes the first from kafka-configs only, and its authorizer reads the last two by itself."""


NOT_SERVED = {
    **dict.fromkeys((80, 81), "there is no quorum: the cluster's metadata are a log in the store"),
    **dict.fromkeys((88, 89), "groups of the streams protocol are not coordinated"),
}
"""APIs of a Kafka broker that Firn has not, with the reason."""


class Known(NamedTuple):
    type: str
    update: str
    default: str
    bounds: str


@pytest.fixture(scope="module")
def kafka() -> Iterator[JavaProgram]:
    with running("Settings.java") as program:
        yield program


def text_of(word: str) -> str:
    return base64.b64decode(word[1:]).decode()


def definitions(kafka: JavaProgram, kind: str) -> dict[str, Known]:
    found = {}
    for line in kafka.ask("definitions", kind).split(";"):
        name, type_name, update, default, bounds = line.split(" ")
        found[name] = Known(type_name, update, text_of(default), text_of(bounds))
    return found


def test_every_setting_of_a_kafka_broker_takes_effect_or_has_a_reason_why_not(kafka: JavaProgram) -> None:
    theirs = definitions(kafka, "broker")
    effective = {*catalogue(), *ALIASES}
    assert len(theirs) > 300
    assert not effective & BROKER_WITHOUT_EFFECT.keys()
    assert theirs.keys() - effective == BROKER_WITHOUT_EFFECT.keys() - OF_OTHER_BROKERS


def test_settings_without_effect_have_kafkas_types_defaults_bounds_and_times_of_change(kafka: JavaProgram) -> None:
    theirs = definitions(kafka, "broker")
    for name, entry in BROKER_WITHOUT_EFFECT.items():
        if name in OF_OTHER_BROKERS:
            continue
        known, definition = theirs[name], entry.definition
        assert definition.type.name == known.type, name
        assert definition.update.value == known.update, name
        if definition.default is not None:
            assert format_value(definition.default) == known.default, name
            parse_value(definition, known.default)
        least = re.match(r"\[(-?[\d.]+),", known.bounds)
        assert definition.minimum == (float(least[1]) if least else None), name


def test_settings_with_effect_have_kafkas_types_and_bounds_and_its_defaults_or_say_so(kafka: JavaProgram) -> None:
    theirs = definitions(kafka, "broker")
    for name, definition in BROKER_DEFINITIONS.items():
        known = theirs.get(name)
        if known is None:
            assert name.startswith("firn.") or name in OF_OTHER_BROKERS | OF_FIRN, name
            continue
        assert name == "log.dirs" or definition.type.name == known.type, name
        if definition.kafka_default is None:
            assert (format_value(definition.default) or "") == known.default, name
        elif name not in ("node.id", "log.dirs"):
            assert definition.kafka_default == known.default, name
        least = re.match(r"\[(-?[\d.]+),", known.bounds)
        most = re.search(r",(\d[\d.]*)\]$", known.bounds)
        # A lower bound may be higher here: a request of a few bytes is none.
        assert least is None or (definition.minimum is not None and definition.minimum >= float(least[1])), name
        assert most is None or definition.maximum == float(most[1]), name


def test_what_kafka_alters_while_it_runs_is_altered_here_too(kafka: JavaProgram) -> None:
    fixed = {
        name
        for name, known in definitions(kafka, "broker").items()
        if known.update != "read-only"
        and name not in TOPIC_BY_SYNONYM
        and name in BROKER_DEFINITIONS
        and BROKER_DEFINITIONS[name].update is Update.READ_ONLY
    }
    # Those of listeners are fixed too; a changed file of certificates is read again.
    assert fixed - SECURITY_DEFINITIONS.keys() == FIXED_HERE


def test_every_setting_of_a_kafka_topic_is_taken(kafka: JavaProgram) -> None:
    theirs = definitions(kafka, "topic")
    assert theirs.keys() <= {*TOPIC_DEFINITIONS, *TOPIC_WITHOUT_EFFECT}
    for name, known in theirs.items():
        definition = TOPIC_DEFINITIONS.get(name) or TOPIC_WITHOUT_EFFECT[name].definition
        assert definition.type.name == known.type, name
        if known.default:
            parse_value(definition, known.default)


def test_every_api_is_served_in_the_versions_of_kafka(kafka: JavaProgram) -> None:
    theirs = {}
    for line in kafka.ask("versions").split(";"):
        key, first, last = map(int, line.split(" "))
        theirs[key] = (first, last)
    assert {int(key): versions for key, versions in SERVED.items()} == {
        key: versions for key, versions in theirs.items() if key not in NOT_SERVED
    }


def test_properties_are_read_as_java_reads_them(kafka: JavaProgram, tmp_path: Path) -> None:
    text = (
        "# comment = no\n! neither = this\r\n\n   \t\n"
        "plain=value\ncolon:value\nblank value of words  \n  led =  spaced\nempty=\nnothing\n=no name\n"
        "joined = one,\\\n      two,\\\r\n\ttree\\\n\nodd=a\\\\\\\n  b\neven=a\\\\\nnext=1\n"
        "with\\ blank\\=and\\:signs=x\nescapes=\\t\\n\\r\\f\\q\\\\\nuni=\\u00e9\\u20ac\\ud83d\\ude00\n"
        "twice=1\ntwice=2\nlatin=\xe9\nhash=a#b\ntabbed\t=\tx\nboth = = y\ncr=1\rlf=2\nlast=kept\\"
    )
    path = tmp_path / "x.properties"
    path.write_bytes(text.encode("latin-1"))
    java = dict(map(text_of, line.split(" ")) for line in kafka.ask("properties", path).split(";"))
    assert dict(parse_properties(text)) == java
