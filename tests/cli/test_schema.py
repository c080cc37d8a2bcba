"""``firn schema register|get|check|ls`` and ``firn consume --schema`` against a real broker."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from app.cli import main
from app.client.cluster import ClusterClient
from app.client.schema_log import BrokerSchemaLog
from app.metadata.image.records import LEVEL_MAX, REGISTRY_LEVEL
from app.records.builder import build_batch
from tests.handlers.conversation import talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.schema_records import operator_record
from tests.support.several import unfenced
from tests.support.waiting import until

Capture = pytest.CaptureFixture[str]
Firn = Callable[..., Awaitable[tuple[int, str, str]]]
USER = {"type": "record", "name": "User", "namespace": "a.b", "fields": [{"name": "name", "type": "string"}]}
OTHER = {**USER, "fields": [*USER["fields"], {"name": "age", "type": "int"}]}  # type: ignore[misc]
OLDER = {**USER, "fields": [*USER["fields"], {"name": "age", "type": "int", "default": 0}]}  # type: ignore[misc]


@asynccontextmanager
async def commands(tmp_path: Path, capfd: Capture, level: int = LEVEL_MAX) -> AsyncIterator[tuple[RunningBroker, Firn]]:
    async with running_broker(tmp_path, new_level=level) as broker:
        await until(lambda: unfenced(broker) == [1])

        async def firn(*arguments: str, schema: Any = None, text: str | None = None) -> tuple[int, str, str]:
            """The exit code and the two outputs. ``schema`` or ``text`` is in the file that the last argument names."""
            given = list(arguments)
            if schema is not None or text is not None:
                file = tmp_path / "schema"
                file.write_text(json.dumps(schema) if text is None else text)
                given.append(str(file))
            capfd.readouterr()
            code = await asyncio.to_thread(main, (*given, "--bootstrap", broker.bootstrap))
            out, err = capfd.readouterr()
            return code, out, err

        yield broker, firn


async def test_a_schema_is_registered_once_shown_and_listed(tmp_path: Path, capfd: Capture) -> None:
    async with commands(tmp_path, capfd) as (_, firn):
        assert (await firn("schema", "ls"))[2] == "There are no subjects.\n"
        code, out, err = await firn("schema", "register", "t-value", schema=USER)
        assert (code, out, err) == (0, "1\n", "Registered version 1 of t-value.\n")
        assert (await firn("schema", "register", "t-value", schema=USER))[
            2
        ] == "There was already version 1 of t-value.\n"
        code, out, _ = await firn("schema", "register", "t-value", "--json", schema=OLDER)
        assert (code, json.loads(out)) == (0, {"subject": "t-value", "id": 2, "version": 2, "new": True})
        assert json.loads((await firn("schema", "get", "t-value"))[1]) == OLDER
        assert json.loads((await firn("schema", "get", "t-value", "--version", "1"))[1]) == USER
        assert json.loads((await firn("schema", "get", "--id", "1"))[1]) == USER
        shown = json.loads((await firn("schema", "get", "--id", "2", "--json"))[1])
        assert json.loads(shown.pop("schema")) == OLDER
        assert UUID(shown.pop("guid"))
        assert shown == {"subject": "t-value", "version": 2, "id": 2, "schemaType": "AVRO", "references": []}
        code, out, _ = await firn("schema", "ls", "--json", "--prefix", "t-")
        [listed] = json.loads(out)
        assert (code, listed["subject"], listed["versions"], listed["version"]) == (0, "t-value", 2, 2)
        assert "t-value" in (await firn("schema", "ls"))[1]
        assert (await firn("schema", "ls", "--prefix", "u"))[1] == ""


async def test_an_alias_means_the_subject_that_it_names(tmp_path: Path, capfd: Capture) -> None:
    async with commands(tmp_path, capfd) as (broker, firn):
        await firn("schema", "register", "t-value", schema=USER)
        async with ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster:
            log = BrokerSchemaLog(cluster)
            _, end = await log.read(0)
            await log.append(end, None, [operator_record("CONFIG", "u-value", alias="t-value")])
        assert json.loads((await firn("schema", "get", "u-value"))[1]) == USER
        assert (await firn("schema", "register", "u-value", schema=USER))[
            2
        ] == "There was already version 1 of u-value.\n"
        assert json.loads((await firn("schema", "ls", "--json"))[1])[0]["subject"] == "t-value"


async def test_an_incompatible_schema_is_told_in_words_and_not_registered(tmp_path: Path, capfd: Capture) -> None:
    async with commands(tmp_path, capfd) as (_, firn):
        await firn("schema", "register", "t-value", schema=USER)
        assert (await firn("schema", "check", "t-value", schema=OLDER))[::2] == (
            0,
            "The schema is compatible with t-value.\n",
        )
        code, out, err = await firn("schema", "check", "t-value", schema=OTHER)
        assert (code, err) == (1, "The schema is incompatible with t-value.\n")
        assert "age" in out
        code, out, _ = await firn("schema", "check", "t-value", "--json", schema=OTHER)
        told = json.loads(out)
        assert (code, told["compatible"], len(told["findings"])) == (1, False, 1)
        code, out, err = await firn("schema", "register", "t-value", schema=OTHER)
        assert (code, out) == (1, "")
        assert "incompatible with an earlier schema" in err
        assert len(json.loads((await firn("schema", "ls", "--json"))[1])) == 1


async def test_references_and_types_are_given_by_options(tmp_path: Path, capfd: Capture) -> None:
    async with commands(tmp_path, capfd) as (_, firn):
        await firn("schema", "register", "users", schema=USER)
        many = {"type": "array", "items": "a.b.User"}
        code, out, err = await firn("schema", "register", "t-value", "--reference", "a.b.User=users:1", schema=many)
        assert (code, out) == (0, "2\n"), err
        code, out, _ = await firn("schema", "register", "j-value", "--type", "json", schema={"type": "object"})
        assert (code, out) == (0, "3\n")
        assert json.loads((await firn("schema", "get", "j-value", "--json"))[1])["schemaType"] == "JSON"


@pytest.mark.parametrize(
    ("arguments", "text", "code", "told"),
    [
        (("schema", "register", "t-value"), "{", 2, "Invalid schema"),
        (("schema", "register", "t-value", "--type", "XML"), '"string"', 2, "the type is one of AVRO, JSON"),
        (("schema", "register", "t-value", "--reference", "n=s"), '"string"', 2, "write NAME=SUBJECT:VERSION"),
        (("schema", "register", "t-value", "no-such-file"), None, 2, "The schema in no-such-file cannot be read"),
        (("schema", "get"), None, 2, "Name a schema"),
        (("schema", "get", "s", "--id", "1"), None, 2, "Name a schema"),
        (("schema", "get", "nothing"), None, 1, "Subject 'nothing' not found."),
        (("schema", "get", "--id", "9"), None, 1, "There is no schema with the id 9"),
    ],
)
async def test_a_mistake_is_told_in_a_sentence(
    tmp_path: Path, capfd: Capture, arguments: tuple[str, ...], text: str | None, code: int, told: str
) -> None:
    async with commands(tmp_path, capfd) as (_, firn):
        found, out, err = await firn(*arguments, text=text)
        assert (found, out) == (code, "")
        assert told in err


async def test_a_cluster_of_a_lower_level_says_how_to_raise_it(tmp_path: Path, capfd: Capture) -> None:
    async with commands(tmp_path, capfd, REGISTRY_LEVEL - 1) as (_, firn):
        code, _, err = await firn("schema", "ls")
        assert code == 1
        assert "firn cluster features --upgrade firn.version=5" in err


async def test_records_are_printed_as_json_by_the_schemas_that_they_name(tmp_path: Path, capfd: Capture) -> None:
    async with commands(tmp_path, capfd) as (broker, firn):
        await broker.create_topic("t")
        await firn("schema", "register", "t-value", schema=USER)
        await firn("schema", "register", "j-value", "--type", "JSON", schema={"type": "object"})
        guid = UUID(json.loads((await firn("schema", "get", "--id", "1", "--json"))[1])["guid"])
        header = (("__value_schema_id", b"\x01" + guid.bytes),)
        records = [
            (1, b"plain key", struct.pack(">bI", 0, 1) + b"\x06Ann", ()),
            (1, None, b"\x06Bob", header),
            (1, None, struct.pack(">bI", 0, 2) + b'{"a": 1.5}', ()),
            (1, None, None, ()),
            (1, None, b"no schema", ()),
            (1, None, struct.pack(">bI", 0, 1) + b"\x08Ann", ()),
            (1, None, struct.pack(">bI", 0, 77) + b"x", ()),
        ]
        async with talk(broker.port) as client:
            await client.produce(9, [("t", [(0, build_batch(records))])])
        code, out, err = await firn("consume", "t", "--schema", "-n", "4")
        assert (code, out, err) == (0, '{"name":"Ann"}\n{"name":"Bob"}\n{"a":1.5}\n\n', "")
        code, out, err = await firn("consume", "t", "--schema", "--json")
        lines = [json.loads(line) for line in out.splitlines()]
        assert [one["value"] for one in lines[:5]] == [{"name": "Ann"}, {"name": "Bob"}, {"a": 1.5}, None, "no schema"]
        assert lines[0]["key"] == "plain key"
        assert "base64" in str(lines[6]["value"]) or lines[6]["value"].endswith("x")
        assert err == "3 values printed as stored. The first is the value at offset 4: it has no schema id.\n"
