"""The OpenAPI document describes bodies by the types that read and write them."""

from __future__ import annotations

import ast
import inspect
import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest

from app.core.units import TimestampMs
from app.http import application, compactions, record_json
from app.http.application import create_app
from app.http.errors import Error, RestAnswer
from app.http.gateway import HttpSettings
from app.http.rest_v3 import acls, configs, topics

KINDS = {kind.__name__: kind for kind in application._BODIES}


class _Clock:
    def now_ms(self) -> TimestampMs:
        return TimestampMs(0)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    settings = HttpSettings(bootstrap=(("127.0.0.1", 1),))
    return create_app(settings, clock=_Clock(), rng=random.Random(1)).openapi()


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for inner in node.values():
            yield from references(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from references(inner)


def test_every_reference_of_the_document_resolves_and_every_schema_is_referred_to(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    found = {name.removeprefix("#/components/schemas/") for name in references(document)}
    assert found <= schemas.keys()
    assert schemas.keys() == found


def test_every_example_of_a_body_is_one_that_the_route_reads(document: dict[str, Any]) -> None:
    read = []
    for path, operations in document["paths"].items():
        for operation in operations.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                name = content["schema"]["$ref"].rpartition("/")[2]
                msgspec.json.decode(msgspec.json.encode(content["example"]), type=KINDS[name])
                read.append(path)
    assert len(read) == 40


def decoded_and_described(module: ModuleType) -> Iterator[tuple[str, str]]:
    """For each route with a body of JSON: the type that decodes it, and the type that its document names."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(node, ast.AsyncFunctionDef):
            continue
        described = [
            call.args[0].id
            for route in node.decorator_list
            for call in ast.walk(route)
            if isinstance(call, ast.Call)
            and ast.unparse(call.func) == "request_body"
            and isinstance(call.args[0], ast.Name)
        ]
        decoded = [
            argument.id
            for call in ast.walk(node)
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("body_of", "small_body")
            for argument in call.args
            if isinstance(argument, ast.Name) and argument.id in KINDS
        ]
        for one in described or decoded:
            yield (decoded or [one])[0], (described or [""])[0]


@pytest.mark.parametrize("module", [topics, configs, acls, compactions])
def test_a_body_is_described_by_the_type_that_decodes_it(module: ModuleType) -> None:
    found = list(decoded_and_described(module))
    assert found
    assert [pair for pair in found if pair[0] != pair[1]] == []


def test_the_schema_of_a_record_says_what_the_code_checks_beyond_the_type(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["RecordData"]["properties"]["type"]["enum"] == [
        *("BINARY", "JSON", "STRING", "AVRO", "JSONSCHEMA", "PROTOBUF"),
        None,
    ]
    headers = schemas["RecordRequest"]["properties"]["headers"]
    assert headers["items"] == {"$ref": "#/components/schemas/RecordHeader"}
    assert headers["maxItems"] == record_json.HEADERS_MAX
    entry = schemas["BatchEntry"]
    assert entry["required"] == ["id"]
    assert entry["additionalProperties"] is False
    assert schemas["BatchBody"]["properties"]["entries"]["maxItems"] == record_json.ENTRIES_MAX


def test_an_error_has_the_body_that_the_document_describes() -> None:
    body = RestAnswer(404, 40403, "There is no topic.").body()
    assert body == b'{"error_code":40403,"message":"There is no topic."}'
    assert msgspec.json.decode(body, type=Error) == Error(40403, "There is no topic.")
    assert Error in application._BODIES


def test_the_routes_that_produce_name_the_header_of_a_key_and_no_other_route_does(document: dict[str, Any]) -> None:
    named = {
        (method, path)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for one in operation.get("parameters", ())
        if (one["name"], one["in"], one["required"]) == ("Idempotency-Key", "header", False)
    }
    records = "/v3/clusters/{cluster_id}/topics/{topic_name}/records"
    assert named == {
        ("post", records),
        ("post", f"{records}:batch"),
        ("post", "/topics/{topic_name}"),
        ("post", "/topics/{topic_name}/partitions/{partition_id}"),
    }
