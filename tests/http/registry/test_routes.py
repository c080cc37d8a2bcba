"""The routes of the schema registry, by the conventions of Confluent's API documents."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import jsonschema
import pytest
from fastapi import Request
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from starlette.datastructures import QueryParams

from app.http.bodies import CONTAINERS_MAX
from app.http.registry import requests, settings
from app.http.registry.answers import WHOLE_MAX
from app.http.schemas import REGISTRY_PATHS
from app.registry.record_json import Key, KeyType, write_key
from tests.support.registry import schema_record
from tests.support.registry_routes import MEDIA_TYPE, Client
from tests.support.schema_log import MemorySchemaLog
from tests.support.schema_records import operator_record

STRING = '"string"'


@pytest.fixture(name="client")
async def _client() -> AsyncIterator[Client]:
    client = Client()
    yield client
    await client.http.aclose()


def record(*fields: Any, name: str = "User") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


A = {"name": "a", "type": "string"}
B = {"name": "b", "type": "string"}


async def test_a_schema_is_registered_got_listed_and_found(client: Client) -> None:
    assert await client.register("orders-value", '{"type":"string"}') == 1
    assert await client.register("orders-value", '{"type":"string"}') == 1
    got = await client.good("GET", "/schemas/ids/1")
    assert got["schema"] == STRING
    assert got.keys() == {"schema", "guid"}
    assert await client.good("GET", "/schemas/ids/1/schema") == "string"
    assert await client.good("GET", "/subjects") == ["orders-value"]
    assert await client.good("GET", "/subjects/orders-value/versions") == [1]
    version = {"subject": "orders-value", "version": 1, "id": 1, "schema": STRING, "guid": got["guid"]}
    for name in ("1", "latest", "-1"):
        assert await client.good("GET", f"/subjects/orders-value/versions/{name}") == version
    assert await client.good("GET", "/subjects/orders-value/versions/1/schema") == "string"
    assert await client.good("POST", "/subjects/orders-value", {"schema": STRING}) == version
    assert await client.good("GET", "/schemas") == [version]
    assert await client.good("GET", "/schemas/ids/1/subjects") == ["orders-value"]
    assert await client.good("GET", "/schemas/ids/1/versions") == [{"subject": "orders-value", "version": 1}]
    assert await client.good("GET", f"/schemas/guids/{got['guid']}") == got
    assert await client.good("GET", f"/schemas/guids/{got['guid']}/ids") == [{"context": ".", "id": 1}]
    assert (await client.good("GET", "/schemas/ids/1?fetchMaxId=true"))["maxId"] == 1
    assert await client.good("GET", "/schemas/types") == ["JSON", "PROTOBUF", "AVRO"]
    assert client.log.subjects == ["orders-value"]


async def test_a_registration_tells_the_whole_schema_to_clients_that_take_it(client: Client) -> None:
    """A serialiser that puts GUIDs into headers knows them from there."""
    takes_all = {"Confluent-Accept-Unknown-Properties": "true"}
    rules = {"domainRules": [{"name": "r", "type": "CEL"}]}
    await client.register("other", STRING)
    reference = {"name": "r", "subject": "other", "version": 1}
    body = {"schemaType": "JSON", "schema": '{"type": "object"}', "references": [reference], "ruleSet": rules}
    for _ in ("new", "there already"):
        status, told = await client.ask("POST", "/subjects/a/versions", body, **takes_all)
        got = await client.good("GET", "/subjects/a/versions/1")
        assert got.pop("subject") == "a"
        assert (status, told) == (200, got)
        assert set(told) == {"id", "version", "guid", "schemaType", "schema", "references", "ruleSet"}
    for other in ({}, {"Confluent-Accept-Unknown-Properties": "false"}):
        assert await client.ask("POST", "/subjects/a/versions", body, **other) == (200, {"id": told["id"]})


READ_FIRST: Final = ("GET", "POST", "PUT", "DELETE")
BODY_OF: Final[dict[str, Any]] = {"config": {"compatibility": "NONE"}, "mode": {"mode": "READWRITE"}}


async def test_the_document_has_the_parameters_that_each_route_reads_and_the_shape_of_its_answer(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.register("a", STRING)
    guid = (await client.good("GET", "/schemas/ids/1"))["guid"]
    document = client.app.openapi()
    paths = {path: of for path, of in document["paths"].items() if path.startswith(REGISTRY_PATHS)}
    for path in ("/v1/metadata/id", "/v1/metadata/version", "/v1/metadata/deployment"):
        del paths[path]  # the first one asks a broker
    read: set[str] = set()

    class Told(QueryParams):
        def get(self, key: Any, default: Any = None) -> Any:
            read.add(key)
            return super().get(key, default)

        def getlist(self, key: Any) -> list[Any]:
            read.add(key)
            return super().getlist(key)

    monkeypatch.setattr(Request, "query_params", property(lambda self: Told(self.scope["query_string"])))
    for method in READ_FIRST:
        for path, operations in paths.items():
            operation = operations.get(method.lower())
            if operation is None or "(schema registry)" not in operation["tags"][0]:
                continue
            read.clear()
            names = {"subject": "a", "version": "1", "schema_id": "1", "guid": guid}
            body = {"POST": {"schema": STRING}, "PUT": BODY_OF.get(path.split("/")[1])}.get(method)
            status, found = await client.ask(method, path.format(**names) + "?fetchMaxId=true", body)
            assert status == 200 or found["error_code"] in (40404, 40406, 40408, 40409), (method, path, found)
            documented = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"}
            assert documented == read, (method, path)
            if status == 200 and not path.endswith("/schema"):
                [of_type] = operation["responses"]["200"]["content"].values()
                jsonschema.validate(found, {**of_type["schema"], "components": document["components"]})


@pytest.mark.parametrize(
    ("accepted", "kind"),
    [
        ("", MEDIA_TYPE),
        ("*/*", MEDIA_TYPE),
        ("application/*", MEDIA_TYPE),
        (f"application/json, {MEDIA_TYPE};q=0.5", "application/json"),
        (f"application/json;q=0.5, {MEDIA_TYPE}; charset=utf-8", MEDIA_TYPE),
        (f"application/json, {MEDIA_TYPE};q=0", "application/json"),
        ("application/json;q=0, application/*;q=0.1", MEDIA_TYPE),
        ("application/json", "application/json"),
        ("text/html;q=0.5, Application/JSON;q=0.1", "application/json"),
        ("application/json, application/vnd.schemaregistry+json", "application/vnd.schemaregistry+json"),
        ("text/html", MEDIA_TYPE),
    ],
)
async def test_an_answer_has_a_type_that_its_request_accepts(client: Client, accepted: str, kind: str) -> None:
    client.log.put(*(schema_record(f"s{n:03}", 1, 1) for n in range(WHOLE_MAX + 1)))
    for path, status in (
        ("/schemas/ids/1", 200),
        ("/subjects", 200),
        ("/subjects/s000/versions/1/schema", 200),
        ("/schemas", 200),
        ("/subjects/none/versions", 404),
        ("/contexts/.sales/mode", 200),
    ):
        answer = await client.http.get(path, headers={"Accept": accepted})
        assert (answer.status_code, answer.headers["content-type"]) == (status, kind), path


async def test_brackets_in_the_text_of_a_schema_are_no_arrays_of_the_body(client: Client) -> None:
    text = json.dumps({"type": "object", "description": '["{' * 2 * CONTAINERS_MAX})
    assert await client.good("POST", "/subjects/s/versions", {"schemaType": "JSON", "schema": text}) == {"id": 1}


async def test_lists_are_filtered_and_paged(client: Client) -> None:
    for name in ("a", "ab", "b"):
        await client.register(name, STRING)
    await client.register("ab", '"bytes"')
    assert await client.good("GET", "/subjects?subjectPrefix=a") == ["a", "ab"]
    assert await client.good("GET", "/subjects?offset=1&limit=1") == ["ab"]
    schemas = await client.good("GET", "/schemas?subjectPrefix=a&latestOnly=true")
    assert [(one["subject"], one["version"]) for one in schemas] == [("a", 1), ("ab", 2)]
    assert await client.refused("GET", "/subjects?limit=x") == (422, 42202)


async def test_members_of_a_body_may_be_null_and_numbers_texts(client: Client) -> None:
    for body in ({}, {"schema": None}, {"schema": ""}):
        assert await client.refused("POST", "/subjects/a/versions", body) == (422, 42201)
    await client.register("a", STRING)
    reference = {"name": "r", "subject": "a", "version": "1"}
    await client.register("b", '"int"', references=[reference])
    assert (await client.good("GET", "/subjects/b/versions/1"))["references"] == [{**reference, "version": 1}]
    await client.good("PUT", "/config/a", {"normalize": "true", "compatibility": None})
    assert (await client.good("GET", "/config/a"))["normalize"] is True


async def test_schemas_are_found_by_the_types_of_their_rules(client: Client) -> None:
    def rules(**of_kind: Any) -> dict[str, Any]:
        return {"ruleSet": {kind: [{"name": "r", "type": one} for one in types] for kind, types in of_kind.items()}}

    await client.register("a", STRING, **rules(domainRules=["CEL"]))
    await client.register("a", '"bytes"', **rules(migrationRules=["JSONATA"], domainRules=[["CEL"], None, 1]))
    await client.register("b", STRING, **rules(encodingRules=["ENCRYPT"]))
    await client.register("c", STRING)
    await client.register("d", STRING, ruleSet={"domainRules": "CEL", "enableAt": 1, "migrationRules": ["CEL"]})

    async def found(query: str) -> list[tuple[str, int]]:
        return [(one["subject"], one["version"]) for one in await client.good("GET", f"/schemas?{query}")]

    assert await found("ruleType=CEL") == [("a", 1)]
    assert await found("ruleType=JSONATA&ruleType=ENCRYPT") == [("a", 2), ("b", 1)]
    assert await found("ruleType=cel") == []
    assert await found("ruleType=CEL&latestOnly=true") == [], "the newest version has no such rule"
    assert await found("ruleType=JSONATA&latestOnly=true&subjectPrefix=a") == [("a", 2)]
    assert await found("ruleType=&latestOnly=true") == [("a", 2), ("b", 1), ("c", 1), ("d", 1)]


async def test_schemas_are_found_by_aliases_of_their_subjects(client: Client) -> None:
    await client.register("flights", STRING)
    await client.register("flights", '"bytes"')
    await client.register("other", STRING)
    for name, alias in (
        ("us.flights", "flights"),
        ("eu.flights", "flights"),
        ("none", "missing"),
        (":.sales:flights", "sold"),
        (":.sales:", "sold"),
    ):
        await client.good("PUT", f"/config/{name}", {"alias": alias})
    await client.good("PUT", "/config", {"alias": "other"})
    await client.register(":.sales:sold", STRING)

    async def found(query: str, base: str = "") -> list[tuple[str, int, list[str] | None]]:
        schemas = await client.good("GET", f"{base}/schemas?{query}")
        return [(one["subject"], one["version"], one.get("aliases")) for one in schemas]

    both = ["eu.flights", "us.flights"]
    assert await found("aliases=true") == [
        (":.sales:sold", 1, [":.sales:flights"]),
        ("flights", 1, both),
        ("flights", 2, both),
        ("other", 1, None),
    ]
    assert await found("aliases=true&subjectPrefix=us.&latestOnly=true") == [("flights", 2, ["us.flights"])]
    assert await found("aliases=true&subjectPrefix=fl&latestOnly=true") == [("flights", 2, None)]
    assert await found("aliases=true&subjectPrefix=none") == []
    assert await found("subjectPrefix=us.") == []
    assert await found("aliases=true&subjectPrefix=f", "/contexts/sales") == [(":.sales:sold", 1, [":.sales:flights"])]


async def test_an_alias_means_the_subject_that_it_names_but_for_deletions_and_settings(client: Client) -> None:
    await client.register("flights", '"int"')
    await client.good("PUT", "/config/flights", {"compatibility": "FULL", "normalize": True})
    await client.good("PUT", "/config/us.flights", {"alias": "flights"})
    alias, own = "/subjects/us.flights", "/subjects/flights"
    for path in (
        "/versions",
        "/versions/latest",
        "/versions/1",
        "/versions/1/schema",
        "/versions/1/referencedby",
        "/metadata",
    ):
        assert await client.good("GET", alias + path) == await client.good("GET", own + path), path
    body = {"schema": '{"type":"int"}'}
    assert await client.good("POST", alias, body) == await client.good("POST", own, body)
    assert await client.good("POST", f"{alias}/versions", body) == {"id": 1}
    assert await client.good("GET", "/schemas/ids/1/versions?subject=us.flights") == [
        {"subject": "flights", "version": 1}
    ]
    for version in ("", "/latest", "/1"):
        verdict = await client.good("POST", f"/compatibility{alias}/versions{version}", {"schema": '"long"'})
        assert verdict == {"is_compatible": False}
    assert await client.refused("POST", f"{alias}/versions", {"schema": '"long"'}) == (409, 409)
    await client.good("PUT", "/config/flights", {"compatibility": "NONE"})
    assert await client.good("POST", f"{alias}/versions", {"schema": '"long"'}) == {"id": 2}
    assert await client.good("GET", "/subjects") == ["flights"]
    assert client.log.subjects[-1] == "flights", "the broker asks for the rights to this one"
    await client.good("PUT", "/mode/flights", {"mode": "READONLY"})
    assert await client.refused("POST", f"{alias}/versions", {"schema": '"bytes"'}) == (422, 42205)
    await client.good("PUT", "/mode/flights?force=true", {"mode": "IMPORT"})
    await client.good("PUT", "/config/flights", {"compatibility": "FULL"})
    assert await client.good("POST", f"{alias}/versions", {"schema": '"bytes"', "id": 9}) == {"id": 9}
    await client.good("DELETE", "/mode/flights")

    assert await client.refused("DELETE", alias) == (404, 40401)
    assert await client.refused("DELETE", f"{alias}/versions/1") == (404, 40401)
    assert await client.refused("GET", "/mode/us.flights") == (404, 40409)
    assert (await client.good("GET", "/config/us.flights"))["alias"] == "flights"
    assert await client.good("DELETE", "/config/us.flights") == {"alias": "flights"}
    assert await client.refused("GET", f"{alias}/versions") == (404, 40401)


@pytest.mark.parametrize("alias", ["", ":.sales:", ":.sales:flights", "b", "a\n"])
async def test_an_alias_that_means_no_other_subject(client: Client, alias: str) -> None:
    """It is empty, a context, in another context, an alias itself, or a name that no subject may have."""
    await client.register("flights", STRING)
    await client.register(":.sales:flights", STRING)
    await client.good("PUT", "/config/b", {"alias": "flights"})
    await client.good("PUT", "/config/a", {"alias": alias})
    assert await client.refused("GET", "/subjects/a/versions") == (404, 40401)
    status, answer = await client.ask("POST", "/subjects/a/versions", {"schema": STRING})
    if alias == "a\n":
        assert (status, answer["error_code"]) == (422, 42208)
    else:
        assert await client.good("GET", "/subjects") == sorted(
            [":.sales:flights", "b" if alias == "b" else "a", "flights"]
        )


async def test_the_deployment_has_no_attributes(client: Client) -> None:
    assert await client.good("GET", "/v1/metadata/deployment") == {"attributes": []}


async def test_long_lists_are_whole_and_in_order(client: Client) -> None:
    names = [f"s{n:03}" for n in range(300)]
    client.log.put(*(schema_record(name, 1, 1) for name in reversed(names)))
    assert await client.good("GET", "/subjects") == names
    assert [one["subject"] for one in await client.good("GET", "/schemas")] == names
    assert [one["subject"] for one in await client.good("GET", "/schemas?offset=50&limit=200")] == names[50:250]
    assert await client.good("GET", "/schemas/ids/1/subjects") == names
    assert len(await client.good("GET", "/schemas/ids/1/versions")) == len(names)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/subjects/none/versions", (404, 40401)),
        ("GET", "/subjects/none/versions/1", (404, 40401)),
        ("POST", "/subjects/none", (404, 40401)),
        ("DELETE", "/subjects/none", (404, 40401)),
        ("GET", "/subjects/a/versions/2", (404, 40402)),
        ("DELETE", "/subjects/a/versions/2", (404, 40402)),
        ("POST", "/compatibility/subjects/a/versions/2", (404, 40402)),
        ("GET", "/schemas/ids/9", (404, 40403)),
        ("GET", "/schemas/ids/x", (404, 40403)),
        ("GET", "/schemas/ids/99999999999999999999", (404, 40403)),
        ("POST", "/subjects/a", (404, 40403)),
        ("GET", "/subjects/a/versions/0", (422, 42202)),
        ("GET", "/subjects/a/versions/x", (422, 42202)),
        ("GET", "/subjects/a/versions/2147483648", (422, 42202)),
        ("GET", "/config/a", (404, 40408)),
        ("DELETE", "/config/a", (404, 40408)),
        ("GET", "/mode/a", (404, 40409)),
        ("DELETE", "/mode/a", (404, 40409)),
        ("DELETE", "/subjects/a?permanent=true", (404, 40405)),
        ("DELETE", "/subjects/a/versions/1?permanent=true", (404, 40407)),
        ("GET", "/exporters", (404, 404)),
        ("GET", "/dek-registry/v1/keks", (404, 404)),
        ("PUT", "/exporters/a/config", (404, 404)),
    ],
)
async def test_errors_have_the_codes_of_the_api(
    client: Client, method: str, path: str, expected: tuple[int, int]
) -> None:
    await client.register("a", STRING)
    body = {"schema": '"int"'} if method == "POST" else None
    assert await client.refused(method, path, body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"schema": "nonsense"}, (422, 42201)),
        ({"schema": ""}, (422, 42201)),
        ({}, (422, 42201)),
        ({"schema": STRING, "schemaType": "XML"}, (422, 42201)),
        ({"schema": '"E"', "references": [{"name": "E", "subject": "none", "version": 1}]}, (422, 42201)),
        ({"schema": STRING, "id": 4}, (422, 42205)),
        ({"schema": 4}, (422, 422)),
        (b"{", (400, 400)),
        (b'{"schema":' + b"[" * 100_000, (422, 422)),
    ],
)
async def test_bodies_that_are_no_schema_are_refused(client: Client, body: Any, expected: tuple[int, int]) -> None:
    assert await client.refused("POST", "/subjects/a/versions", body) == expected
    assert client.log.entries == []


async def test_an_incompatible_schema_is_refused_with_the_path_in_words(client: Client) -> None:
    await client.register("a", record(A))
    status, body = await client.ask("POST", "/subjects/a/versions", {"schema": json.dumps(record(A, B))})
    assert (status, body["error_code"]) == (409, 409)
    assert "At field b of record User" in body["message"]
    asked = {"schema": json.dumps(record(A, B))}
    for path in ("/compatibility/subjects/a/versions/latest", "/compatibility/subjects/a/versions"):
        assert await client.good("POST", path, asked) == {"is_compatible": False}
        verbose = await client.good("POST", f"{path}?verbose=true", asked)
        assert len(verbose["messages"]) == 1
    await client.good("PUT", "/config/a", {"compatibility": "FORWARD"})
    assert await client.good("POST", "/compatibility/subjects/a/versions/1", asked) == {"is_compatible": True}
    assert await client.register("a", record(A, B)) == 2


async def test_transitive_levels_compare_all_versions(client: Client) -> None:
    await client.good("PUT", "/config", {"compatibility": "none"})
    for kind in ("double", "int"):
        await client.register("a", f'"{kind}"')
    await client.good("PUT", "/config", {"compatibility": "BACKWARD_TRANSITIVE"})
    assert await client.refused("POST", "/subjects/a/versions", {"schema": '"long"'}) == (409, 409)
    await client.good("PUT", "/config", {"compatibility": "BACKWARD"})
    assert await client.register("a", '"long"') == 3


async def test_nothing_to_compare_with_is_compatible(client: Client) -> None:
    found = await client.good("POST", "/compatibility/subjects/none/versions/latest?verbose=true", {"schema": STRING})
    assert found == {"is_compatible": True, "messages": []}


async def test_configs_are_set_got_and_taken_away(client: Client) -> None:
    assert await client.good("GET", "/config") == {"compatibilityLevel": "BACKWARD"}
    assert await client.good("PUT", "/config", {"compatibility": "FULL"}) == {"compatibility": "FULL"}
    assert await client.good("GET", "/config") == {"compatibilityLevel": "FULL"}
    assert await client.good("GET", "/config/a?defaultToGlobal=true") == {"compatibilityLevel": "FULL"}
    assert await client.good("PUT", "/config/a", {"compatibility": "NONE"}) == {"compatibility": "NONE"}
    assert await client.good("GET", "/config/a") == {"compatibilityLevel": "NONE"}
    assert await client.good("DELETE", "/config/a") == {"compatibilityLevel": "NONE"}
    assert await client.refused("GET", "/config/a") == (404, 40408)
    assert await client.refused("PUT", "/config", {"compatibility": "SOME"}) == (422, 42203)
    assert await client.good("DELETE", "/config") == {"compatibilityLevel": "FULL"}
    assert await client.good("GET", "/config") == {"compatibilityLevel": "BACKWARD"}
    assert set(client.log.subjects) == {None}


async def test_a_config_without_a_level_is_there_with_the_level_that_holds(client: Client) -> None:
    sent = {
        "normalize": True,
        "alias": "b",
        "aliasForDeks": "c",
        "validateFields": True,
        "validateNewSchemas": False,
        "validateRules": True,
        "compatibilityPolicy": "STRICT",
        "compatibilityGroup": "major",
    }
    assert await client.good("PUT", "/config/a", sent) == sent
    assert await client.good("GET", "/config/a") == {**sent, "compatibilityLevel": "BACKWARD"}
    await client.good("PUT", "/config", {"compatibility": "FULL"})
    assert await client.good("GET", "/config/a") == {**sent, "compatibilityLevel": "FULL"}
    assert await client.good("DELETE", "/config/a") == sent
    assert await client.refused("GET", "/config/a") == (404, 40408)


async def test_modes_of_a_context_are_deleted_with_those_of_its_subjects(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "MODES_AT_ONCE", 2)
    names = [f"s{number}" for number in range(5)]
    for name in (*names, ":.sales:a", ":.sales:b", ":.sales:"):
        await client.good("PUT", f"/mode/{name}", {"mode": "READONLY"})

    async def left(*names: str) -> list[str]:
        return [name for name in names if (await client.ask("GET", f"/mode/{name}"))[0] == 200]

    assert await client.good("DELETE", "/mode/s0?recursive=true") == {"mode": "READONLY"}
    assert await left(*names) == names[1:], "a subject has no subjects"
    assert await client.good("DELETE", "/mode/:.sales:?recursive=true") == {"mode": "READONLY"}
    assert await left(*names, ":.sales:a", ":.sales:b", ":.sales:") == names[1:]
    assert await client.good("DELETE", "/mode/:.sales:?recursive=true") == {"mode": None}
    assert await client.good("DELETE", "/mode") == {"mode": "READWRITE"}
    assert await left(*names) == names[1:]
    assert await client.good("DELETE", "/mode?recursive=true") == {"mode": None}
    assert await left(*names) == []


async def test_schemas_are_compared_within_their_compatibility_group(client: Client) -> None:
    def major(number: int) -> dict[str, Any]:
        return {"metadata": {"properties": {"major": str(number)}}}

    await client.good("PUT", "/config", {"compatibility": "BACKWARD_TRANSITIVE"})
    await client.register("s", '"int"', **major(1))
    assert await client.refused("POST", "/subjects/s/versions", {"schema": '"string"', **major(2)}) == (409, 409)
    await client.good("PUT", "/config/s", {"compatibilityGroup": "major"})
    wrong = {"schema": '"boolean"'}
    for of_group, path in ((1, ""), (1, "/1")):
        verdict = await client.good("POST", f"/compatibility/subjects/s/versions{path}", {**wrong, **major(of_group)})
        assert verdict == {"is_compatible": False}
    assert await client.good("POST", "/compatibility/subjects/s/versions", {**wrong, **major(3)}) == {
        "is_compatible": True
    }
    await client.register("s", '"string"', **major(2))
    await client.register("s", '"long"', **major(1))
    for refused in ({**wrong, **major(1)}, {**wrong, **major(2)}, wrong):
        assert await client.refused("POST", "/subjects/s/versions", refused) == (409, 409), refused
    await client.register("s", '"double"')
    assert (await client.good("GET", "/subjects/s/versions/latest"))["metadata"] == major(1)["metadata"]
    await client.register("s", '"boolean"', metadata={})
    assert await client.refused("POST", "/subjects/s/versions", {"schema": '"null"', "metadata": {}}) == (409, 409)
    client.log.put(operator_record("CONFIG", "s", compatibilityGroup=["major"]))  # by another registry
    assert await client.refused("POST", "/subjects/s/versions", {"schema": '"null"', **major(3)}) == (409, 409)


async def test_configs_add_metadata_and_rules_to_new_schemas(client: Client) -> None:
    def rules(*names: str, kind: str = "CEL") -> dict[str, Any]:
        return {"domainRules": [{"name": name, "type": kind} for name in names]}

    async def newest() -> tuple[Any, Any]:
        found = await client.good("GET", "/subjects/s/versions/latest")
        return found.get("metadata"), found.get("ruleSet")

    await client.register("s", '"int"')
    config = {
        "defaultMetadata": {"properties": {"owner": "all", "team": "all"}, "tags": {"a": ["PII"]}, "sensitive": ["a"]},
        "overrideMetadata": {"properties": {"team": "data"}, "sensitive": ["b"]},
        "defaultRuleSet": rules("x", "y"),
        "overrideRuleSet": rules("z"),
    }
    await client.good("PUT", "/config", config)
    assert await client.register("s", '"int"') == 1, "a text alone finds the version that there is"

    await client.register("s", '"long"')
    added = {"properties": {"owner": "all", "team": "data"}, "tags": {"a": ["PII"]}, "sensitive": ["a", "b"]}
    assert await newest() == (added, rules("x", "y", "z"))

    own = {
        "metadata": {"properties": {"owner": "me", "team": "me"}, "tags": {"c": ["K"]}},
        "ruleSet": rules("y", kind="JSONATA"),
    }
    made = await client.register("s", '"float"', **own)
    metadata, rule_set = await newest()
    assert metadata == {**added, "properties": {"owner": "me", "team": "data"}, "tags": {"a": ["PII"], "c": ["K"]}}
    mine = rules("x")["domainRules"] + own["ruleSet"]["domainRules"] + rules("z")["domainRules"]
    assert rule_set == {"domainRules": mine}
    assert await client.register("s", '"float"', **own) == made
    assert (await client.good("POST", "/subjects/s", {"schema": '"float"', **own}))["id"] == made

    await client.good("PUT", "/config/s", {"overrideMetadata": {"properties": {"team": "sales"}}})
    assert await client.register("s", '"float"') == made
    await client.register("s", '"float"', **own)
    metadata, _ = await newest()
    assert metadata["properties"] == {"owner": "me", "team": "sales"}, "the nearest config counts"
    assert metadata["sensitive"] == ["a"]


async def test_a_schema_with_metadata_gets_a_version_with_those_of_a_later_config(client: Client) -> None:
    own = {"metadata": {"properties": {"team": "me"}}, "ruleSet": {"domainRules": [{"name": "x"}]}}
    first = await client.register("s", '"int"', **own)
    await client.good("PUT", "/config", {"overrideMetadata": {"properties": {"team": "data"}}})
    assert await client.register("s", '"int"', **own) != first
    latest = await client.good("GET", "/subjects/s/versions/latest")
    assert (latest["version"], latest["metadata"]) == (2, {"properties": {"team": "data"}})
    assert latest["ruleSet"] == own["ruleSet"]


async def test_a_config_adds_nothing_to_an_imported_schema(client: Client) -> None:
    await client.good("PUT", "/config", {"defaultMetadata": {"properties": {"owner": "all"}}})
    await client.good("PUT", "/mode", {"mode": "IMPORT"})
    own = {"properties": {"team": "me"}}
    await client.register("s", '"int"', id=7, version=1, metadata=own)
    assert (await client.good("GET", "/subjects/s/versions/1"))["metadata"] == own


async def test_a_config_names_the_compatibility_group_of_new_schemas(client: Client) -> None:
    await client.register("s", '"int"', metadata={"properties": {"major": "1"}})
    await client.good("PUT", "/config/s", {"compatibilityGroup": "major"})
    assert await client.refused("POST", "/subjects/s/versions", {"schema": '"string"'}) == (409, 409)
    await client.good("PUT", "/config/s", {"overrideMetadata": {"properties": {"major": "2"}}})
    await client.register("s", '"string"')


async def test_modes_are_set_got_and_taken_away(client: Client) -> None:
    assert await client.good("GET", "/mode") == {"mode": "READWRITE"}
    assert await client.good("PUT", "/mode/a", {"mode": "READONLY"}) == {"mode": "READONLY"}
    assert await client.good("GET", "/mode/a") == {"mode": "READONLY"}
    assert await client.refused("POST", "/subjects/a/versions", {"schema": STRING}) == (422, 42205)
    assert await client.good("GET", "/mode/b?defaultToGlobal=true") == {"mode": "READWRITE"}
    assert await client.good("DELETE", "/mode/a") == {"mode": "READONLY"}
    assert await client.register("a", STRING) == 1
    assert await client.refused("PUT", "/mode", {"mode": "SOME"}) == (422, 42204)
    assert await client.refused("PUT", "/mode", {"mode": "IMPORT"}) == (422, 42205)
    assert await client.good("PUT", "/mode?force=true", {"mode": "IMPORT"}) == {"mode": "IMPORT"}
    assert await client.register("b", '"int"', id=77, version=5) == 77
    assert await client.good("GET", "/subjects/b/versions") == [5]


async def test_a_schema_that_was_looked_up_is_known_for_a_second(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LOOKED_UP_S", 3_600.0)
    client.log.put(schema_record("a", 1, 1))
    got = await client.good("GET", "/schemas/ids/1")
    paths = ("/schemas/ids/1", "/schemas/ids/1/schema", f"/schemas/guids/{got['guid']}")
    answers = [await client.good("GET", path) for path in paths]
    reads = client.log.reads
    assert [await client.good("GET", path) for path in paths] == answers
    assert client.log.reads == reads
    # What is not known is looked for in the log, and so are lists.
    client.log.put(schema_record("b", 1, 2, '"int"'))
    assert (await client.good("GET", "/schemas/ids/2"))["schema"] == '"int"'
    assert await client.refused("GET", "/schemas/ids/3") == (404, 40403)
    assert [await client.good("GET", path) for path in paths] == answers
    client.log.put((write_key(Key(KeyType.SCHEMA, "a", 1)), None))
    assert [await client.good("GET", path) for path in paths] == answers
    assert await client.good("GET", "/subjects") == ["b"]
    for path in paths:
        assert await client.refused("GET", path) == (404, 40403)
    # The time is over: another process may have deleted a schema.
    assert (await client.good("GET", "/schemas/ids/2"))["schema"] == '"int"'
    monkeypatch.setattr(requests, "LOOKED_UP_S", 0.0)
    client.log.put((write_key(Key(KeyType.SCHEMA, "b", 1)), None))
    assert await client.refused("GET", "/schemas/ids/2") == (404, 40403)


@pytest.mark.parametrize("path", ["/schemas/ids/1", "/schemas/ids/1/schema", "/schemas/guids/{guid}"])
async def test_a_first_look_up_reads_the_end_of_the_log_once(
    path: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.log.put(schema_record("a", 1, 1))
    guid = (await client.good("GET", "/schemas/ids/1"))["guid"]
    monkeypatch.setattr(requests, "LOOKED_UP_S", 0.0)
    before = client.log.reads
    await client.good("GET", f"{path.format(guid=guid)}?first=true")
    assert client.log.reads == before + 1


async def test_answers_are_known_by_context_and_query(client: Client) -> None:
    client.log.put(schema_record("a", 1, 1), schema_record(":.sales:a", 1, 1, '"int"'))
    for _ in range(2):
        assert (await client.good("GET", "/schemas/ids/1"))["schema"] == STRING
        assert (await client.good("GET", "/contexts/sales/schemas/ids/1"))["schema"] == '"int"'
        assert (await client.good("GET", "/schemas/ids/1?subject=:.sales:"))["schema"] == '"int"'


async def test_versions_and_subjects_are_deleted_softly_and_for_good(client: Client) -> None:
    await client.good("PUT", "/config", {"compatibility": "NONE"})
    for kind in ("int", "long", "double"):
        await client.register("a", f'"{kind}"')
    assert await client.good("DELETE", "/subjects/a/versions/1") == 1
    assert await client.refused("DELETE", "/subjects/a/versions/1") == (404, 40406)
    assert await client.good("GET", "/subjects/a/versions") == [2, 3]
    assert await client.good("GET", "/subjects/a/versions?deleted=true") == [1, 2, 3]
    assert await client.good("GET", "/subjects/a/versions?deletedOnly=true") == [1]
    assert await client.refused("GET", "/subjects/a/versions/1") == (404, 40402)
    assert (await client.good("GET", "/subjects/a/versions/1?deleted=true"))["deleted"] is True
    assert (await client.good("GET", "/schemas/ids/1"))["schema"] == '"int"'
    assert await client.good("GET", "/schemas/ids/1/subjects") == []
    assert await client.good("GET", "/schemas/ids/1/subjects?deleted=true") == ["a"]
    assert await client.good("DELETE", "/subjects/a/versions/1?permanent=true") == 1
    assert await client.refused("GET", "/schemas/ids/1") == (404, 40403)
    assert await client.good("DELETE", "/subjects/a/versions/latest") == 3
    assert await client.good("DELETE", "/subjects/a") == [2]
    assert await client.refused("DELETE", "/subjects/a") == (404, 40404)
    assert await client.good("GET", "/subjects") == []
    assert await client.good("GET", "/subjects?deleted=true") == ["a"]
    assert await client.good("GET", "/subjects?deletedOnly=true") == ["a"]
    assert await client.refused("GET", "/subjects/a/versions/2") == (404, 40401)
    assert await client.refused("POST", "/subjects/a", {"schema": '"long"'}) == (404, 40401)
    assert (await client.good("POST", "/subjects/a?deleted=true", {"schema": '"long"'}))["version"] == 2
    assert await client.good("DELETE", "/subjects/a?permanent=true") == [2, 3]
    assert await client.good("GET", "/subjects?deleted=true") == []
    assert await client.register("a", '"double"') == 4


async def test_references_are_stored_and_shown_from_both_sides(client: Client) -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["X"]}
    await client.register("e", enum)
    references = [{"name": "E", "subject": "e", "version": 1}]
    number = await client.register("a", {"type": "array", "items": "E"}, references=references)
    assert (await client.good("GET", f"/schemas/ids/{number}"))["references"] == references
    assert await client.good("GET", "/subjects/e/versions/1/referencedby") == [number]
    assert await client.refused("DELETE", "/subjects/e/versions/1") == (422, 42206)
    asked = {"schema": '{"type":"array","items":"E"}', "references": references}
    assert (await client.good("POST", "/subjects/a", asked))["id"] == number


async def test_a_schema_with_all_types_in_it_finds_the_one_with_references(client: Client) -> None:
    inner = {"type": "enum", "name": "E", "namespace": "x", "symbols": ["X"]}
    await client.register("e", inner)
    references = [{"name": "x.E", "subject": "e", "version": 1}]
    fields = [record({"name": "a", "type": kind}) | {"namespace": "y"} for kind in ("x.E", inner)]
    number = await client.register("a", fields[0], references=references, metadata=owned_by("me"))
    whole = {"schema": json.dumps(fields[1])}
    assert (await client.good("POST", "/subjects/a", whole))["id"] == number
    assert await client.register("a", fields[1]) == number
    other = {"schema": json.dumps(fields[1]).replace('"X"', '"Y"')}
    assert await client.refused("POST", "/subjects/a", other) == (404, 40403)
    assert await client.refused("POST", "/subjects/a", {**whole, "metadata": {}}) == (404, 40403)
    assert await client.refused("POST", "/subjects/e", whole) == (404, 40403)


async def test_referrers_come_once_in_pages_and_deleted_ones_if_asked(client: Client) -> None:
    await client.register("e", {"type": "enum", "name": "E", "symbols": ["X"]})
    references = [{"name": "E", "subject": "e", "version": 1}]
    array, mapping = ({"type": "array", "items": "E"}, {"type": "map", "values": "E"})
    first = await client.register("a", array, references=references)
    assert await client.register("b", array, references=references) == first
    second = await client.register("c", mapping, references=references)
    path = "/subjects/e/versions/1/referencedby"
    assert await client.good("GET", path) == [first, second]
    assert await client.good("GET", f"{path}?offset=1&limit=5") == [second]
    assert await client.good("GET", f"{path}?limit=1") == [first]
    await client.good("DELETE", "/subjects/c")
    assert await client.good("GET", path) == [first]
    assert await client.good("GET", f"{path}?deleted=true") == [first, second]


USER = 'syntax = "proto3";\npackage p;\n\nmessage User {\n  string name = 1;\n}\n'
ORDER = (
    'syntax = "proto3";\npackage p;\n\nimport "user.proto";\nimport "confluent/meta.proto";\n\nmessage Order {\n'
    '  User by = 1 [(confluent.field_meta) = { doc: "who" }];\n}\n'
)


async def test_protobuf_is_registered_with_references_found_and_compared(client: Client) -> None:
    assert await client.register("user", USER.replace("\n", " "), schemaType="PROTOBUF") == 1
    references = [{"name": "user.proto", "subject": "user", "version": 1}]
    number = await client.register("order", ORDER, schemaType="PROTOBUF", references=references)
    got = await client.good("GET", f"/schemas/ids/{number}")
    assert (got["schema"], got["schemaType"], got["references"]) == (ORDER, "PROTOBUF", references)
    assert (await client.good("GET", "/schemas/ids/1"))["schema"] == USER
    assert await client.good("GET", "/subjects/user/versions/1/referencedby") == [number]
    asked = {"schema": ORDER, "schemaType": "PROTOBUF"}
    assert await client.refused("POST", "/subjects/order", asked) == (422, 42201)
    assert (await client.good("POST", "/subjects/order", {**asked, "references": references}))["id"] == number
    changed = {"schema": USER.replace("string name", "int32 name"), "schemaType": "PROTOBUF"}
    status, body = await client.ask("POST", "/subjects/user/versions", changed)
    assert status == 409
    assert "At field name with number 1, in message User: " in body["message"]


async def test_a_protobuf_schema_has_the_form_that_a_request_names(client: Client) -> None:
    await client.register("user", USER, schemaType="PROTOBUF")
    references = [{"name": "user.proto", "subject": "user", "version": 1}]
    await client.register("order", ORDER, schemaType="PROTOBUF", references=references)
    got = await client.good("GET", "/schemas/ids/2?format=serialized")
    guid = got["guid"]
    file = FileDescriptorProto.FromString(base64.b64decode(got["schema"]))
    assert file.message_type[0].field[0].type_name == ".p.User"
    shown = {"schema": ORDER, "schemaType": "PROTOBUF", "references": references}
    for path, body in (
        ("GET /subjects/order/versions/1", None),
        ("POST /subjects/order", shown),
        (f"GET /schemas/guids/{guid}", None),
    ):
        method, _, name = path.partition(" ")
        found = await client.good(method, f"{name}?format=serialized", body)
        assert (found["schema"], found["guid"]) == (got["schema"], guid)
    bare = await client.good("GET", "/subjects/order/versions/1?format=ignore_extensions")
    assert bare["schema"] == ORDER.replace(' [(confluent.field_meta) = { doc: "who" }]', "")
    for form in ("", "none", "resolved"):
        assert (await client.good("GET", f"/schemas/ids/2?format={form}"))["schema"] == ORDER
    answer = await client.http.get("/schemas/ids/2/schema?format=serialized")
    assert answer.text == got["schema"]
    # A client that registers the descriptor gets the id of the text.
    again = FileDescriptorProto.FromString(base64.b64decode(got["schema"]))
    again.message_type[0].field[0].type_name = "User"
    assert await client.refused("POST", "/subjects/order", {**shown, "schema": "AAAA"}) == (422, 42201)
    asked = {**shown, "schema": base64.b64encode(again.SerializeToString()).decode()}
    assert (await client.good("POST", "/subjects/order?normalize=true", asked))["id"] == 2


async def test_an_avro_schema_is_shown_with_the_types_that_it_refers_to(client: Client) -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["X"]}
    await client.register("e", enum)
    references = [{"name": "E", "subject": "e", "version": 1}]
    await client.register("a", {"type": "array", "items": "E"}, references=references)
    found = await client.good("GET", "/subjects/a/versions/1?format=resolved")
    assert json.loads(found["schema"]) == {"type": "array", "items": enum}
    assert json.loads((await client.good("GET", "/schemas/ids/2"))["schema"]) == {"type": "array", "items": "E"}


async def test_metadata_and_rules_are_kept(client: Client) -> None:
    more: dict[str, Any] = {"metadata": {"properties": {"owner": "me"}}, "ruleSet": {"domainRules": [{"name": "r"}]}}
    number = await client.register("a", STRING, **more)
    got = await client.good("GET", f"/schemas/ids/{number}")
    assert {name: got[name] for name in more} == more


RULES: dict[str, Any] = {"domainRules": [{"name": "r"}]}


def owned_by(owner: str) -> dict[str, Any]:
    return {"properties": {"owner": owner}}


async def test_a_text_alone_finds_the_schema_that_has_metadata_and_rules(client: Client) -> None:
    first = await client.register("a", STRING, metadata=owned_by("me"), ruleSet=RULES)
    second = await client.register("a", STRING, metadata=owned_by("you"), ruleSet=RULES)
    assert (await client.good("POST", "/subjects/a", {"schema": '{"type": "string"}'}))["id"] == second
    assert await client.register("a", STRING) == second
    assert await client.good("GET", "/subjects/a/versions") == [1, 2]
    assert (await client.good("POST", "/subjects/a", {"schema": STRING, "metadata": owned_by("me")}))["id"] == first
    assert await client.refused("POST", "/subjects/a", {"schema": STRING, "ruleSet": {}}) == (404, 40403)
    await client.good("DELETE", "/subjects/a/versions/2")
    assert (await client.good("POST", "/subjects/a", {"schema": STRING}))["id"] == first
    assert (await client.good("POST", "/subjects/a?deleted=true", {"schema": STRING}))["id"] == second


async def test_a_schema_without_metadata_of_its_own_is_found_before_one_that_has_them(client: Client) -> None:
    plain = await client.register("a", STRING)
    assert await client.register("a", STRING, metadata=owned_by("me")) != plain
    assert await client.register("a", STRING) == plain


async def test_a_new_version_takes_over_the_metadata_and_rules_that_it_does_not_name(client: Client) -> None:
    await client.good("PUT", "/config/a", {"compatibility": "NONE"})
    await client.register("a", STRING, metadata=owned_by("me"), ruleSet=RULES)

    async def newest() -> tuple[Any, Any]:
        got = await client.good("GET", "/subjects/a/versions/latest")
        return got.get("metadata"), got.get("ruleSet")

    number = await client.register("a", '"int"')
    assert await newest() == (owned_by("me"), RULES)
    assert await client.register("a", '"int"', metadata=owned_by("me")) == number
    await client.register("a", '"long"', metadata=owned_by("you"))
    assert await newest() == (owned_by("you"), RULES)
    await client.register("a", '"bytes"', metadata={}, ruleSet={})
    assert await newest() == ({}, {})
    await client.good("PUT", "/mode/a?force=true", {"mode": "IMPORT"})
    await client.register("a", '"float"', id=900)
    assert await newest() == (None, None)


async def test_the_newest_version_with_some_properties_is_found(client: Client) -> None:
    for owner, stage in (("me", "1"), ("you", "1"), ("me", "2")):
        await client.register("a", STRING, metadata={"properties": {"owner": owner, "stage": stage}})
    await client.register("a", '"bytes"', metadata={"tags": {"x": ["PII"]}})

    async def version(query: str) -> int:
        found = await client.good("GET", f"/subjects/a/metadata{query}")
        assert found.keys() >= {"subject", "id", "schema", "metadata"}
        number: int = found["version"]
        return number

    assert await version("?key=owner&value=me&deleted=False") == 3
    assert await version("?key=owner&value=me&key=stage&value=1") == 1
    assert await version("?key=owner&key=stage&value=you&value=1") == 2
    assert await version("") == 4
    await client.good("DELETE", "/subjects/a/versions/3")
    assert await version("?key=owner&value=me") == 1
    assert await version("?key=owner&value=me&deleted=true") == 3
    assert await client.refused("GET", "/subjects/a/metadata?key=owner&value=nobody") == (404, 40403)
    assert await client.refused("GET", "/subjects/b/metadata?key=owner&value=me") == (404, 40401)
    assert await client.refused("GET", "/subjects/a/metadata?key=owner&key=stage&value=me") == (400, 400)


async def test_a_normalised_schema_is_found_by_another_form_of_it(client: Client) -> None:
    first = {"type": "record", "name": "x.R", "fields": [], "b": 1, "a": 2}
    second = {"a": 2, "b": 1, "type": "record", "name": "R", "namespace": "x", "fields": []}
    found = await client.good("POST", "/subjects/a/versions?normalize=true", {"schema": json.dumps(first)})
    again = await client.good("POST", "/subjects/a/versions?normalize=true", {"schema": json.dumps(second)})
    assert found == again
    assert await client.refused("POST", "/subjects/a", {"schema": json.dumps(first)}) == (404, 40403)
    await client.good("PUT", "/config/a", {"normalize": True})
    assert (await client.good("POST", "/subjects/a", {"schema": json.dumps(first)}))["id"] == found["id"]


async def test_a_context_has_ids_and_subjects_of_its_own(client: Client) -> None:
    await client.register("a", STRING)
    assert await client.register(":.sales:a", '"int"') == 1
    assert (await client.good("GET", "/contexts/sales/schemas/ids/1"))["schema"] == '"int"'
    assert (await client.good("GET", "/schemas/ids/1?subject=:.sales:"))["schema"] == '"int"'
    assert await client.good("GET", "/contexts/.sales/subjects") == [":.sales:a"]
    assert await client.good("GET", "/subjects") == [":.sales:a", "a"]
    assert await client.good("GET", "/subjects?subjectPrefix=:.sales:") == [":.sales:a"]
    assert (await client.good("GET", "/contexts/sales/subjects/a/versions/1"))["subject"] == ":.sales:a"
    assert await client.good("GET", "/contexts") == [".", ".sales"]
    assert await client.good("GET", "/contexts?offset=1&limit=1") == [".sales"]
    assert await client.good("GET", "/contexts?contextPrefix=.s") == [".sales"]
    await client.good("PUT", "/contexts/sales/config", {"compatibility": "NONE"})
    assert await client.good("GET", "/contexts/sales/config/a?defaultToGlobal=true") == {"compatibilityLevel": "NONE"}
    assert await client.good("GET", "/config") == {"compatibilityLevel": "BACKWARD"}


async def test_a_name_with_a_slash_is_one_name(client: Client) -> None:
    await client.register("a%2Fb", STRING)
    assert await client.good("GET", "/subjects") == ["a/b"]
    assert await client.good("GET", "/subjects/a%2Fb/versions") == [1]


async def test_a_log_of_another_registry_is_served_and_read_only_until_an_operator_switches() -> None:
    log = MemorySchemaLog()
    log.put((b"\x00garbage", b"\xff"), schema_record("a", 1, 12, '{"type": "string"}'))
    client = Client(log)
    assert (await client.good("GET", "/schemas/ids/12"))["schema"] == '{"type": "string"}'
    assert await client.good("GET", "/mode") == {"mode": "READONLY"}
    assert await client.refused("POST", "/subjects/a/versions", {"schema": '"int"'}) == (422, 42205)
    assert (await client.good("POST", "/subjects/a", {"schema": STRING}))["id"] == 12
    assert await client.good("PUT", "/mode", {"mode": "READWRITE"}) == {"mode": "READWRITE"}
    assert log.entries[-1].key == write_key(Key(KeyType.MODE))
    await client.http.aclose()


async def test_head_and_slashes_at_the_end_are_served(client: Client) -> None:
    assert await client.good("GET", "/subjects/") == []
    answer = await client.http.head("/subjects")
    assert (answer.status_code, answer.content) == (200, b"")
