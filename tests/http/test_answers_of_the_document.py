"""Answers are as the OpenAPI document says, also those to hostile requests, and none is a fault of the server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from fastapi import FastAPI

from app.metadata.image.records import REGISTRY_LEVEL
from tests.support.broker import RunningBroker, running_broker

BODIES = (
    b"", b"{", b"[]", b"{}", b"null", b'"x"', b"[" * 3_000, b"\xff", b'{"a":1}', b'{"data":null}', b'{"data":[{}]}',
    b'{"records":[{}]}', b'{"records":[]}', b'{"entries":[{}]}', b'{"schema":"[","schemaType":7}', b'{"topics":[""]}',
    b'{"value":{"type":"AVRO","data":1,"schema":"7"}}', b'{"value":{"schema_id":2147483647,"data":1}}',
)  # fmt: skip
VALUES = ("", "-1", "x", "9" * 30, "%00", "true", "0", "\u00fc", "latest")
PLACES = {"cluster_id": "", "topic_name": "flights", "partition_id": "0", "broker_id": "1", "name": "retention.ms"}
ENDS_THE_BROKER, COUNTS_FIRST = "/v1/drain", "/v1/cost"
"""The second one answers 503 in the first minute of a broker."""


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path, num_partitions=1, new_level=REGISTRY_LEVEL) as running:
        await running.create_topic("flights", 1)
        yield running


def requests_of(path: str, operation: dict[str, Any], cluster_id: str) -> Iterator[tuple[str, bytes | None, str]]:
    """URL, body and type: the example of the document, each hostile body, each hostile value of each parameter."""
    places = PLACES | {"cluster_id": cluster_id}
    url = path
    parameters = operation.get("parameters", [])
    for one in parameters:
        if one["in"] == "path":
            url = url.replace("{{{}}}".format(one["name"]), places.get(one["name"], "1"))
    url = url.replace(":path}", "}").replace("{rest}", "x")
    content = operation.get("requestBody", {}).get("content", {})
    kind = next(iter(content), "application/json")
    example = json.dumps(content[kind]["example"]).encode() if content else None
    yield url, example, kind
    for body in BODIES if content else ():
        yield url, body, kind
    for one in parameters:
        if one["name"] in ("cluster_id", "topic_name"):
            continue
        for value in VALUES:
            if one["in"] == "query":
                yield f"{url}?{one['name']}={value}", example, kind
            elif value not in ("", "%00"):
                changed = path.replace("{{{}}}".format(one["name"]), value)
                for other in parameters:
                    changed = changed.replace("{{{}}}".format(other["name"]), places.get(other["name"], "1"))
                yield changed, example, kind


def described(operation: dict[str, Any], status: int) -> dict[str, Any]:
    responses: dict[str, Any] = operation["responses"]
    found = responses.get(str(status)) or responses.get(f"{status // 100}XX")
    assert found is not None, f"status {status} is not in the document"
    return dict(found.get("content", {}))


@pytest.mark.ci
async def test_each_answer_has_a_status_and_a_form_of_the_document(
    http: httpx.AsyncClient, cluster: str, application: FastAPI
) -> None:
    document = application.openapi()
    cluster_id = cluster.rpartition("/")[2]
    operations = [
        (path, method.upper(), operation)
        for path, of_path in document["paths"].items()
        for method, operation in of_path.items()
        if path != ENDS_THE_BROKER
    ]
    asked = 0
    for path, method, operation in sorted(operations, key=lambda one: (one[1] == "DELETE", one[1] == "GET", one[0])):
        for url, body, kind in requests_of(path, operation, cluster_id):
            answer = await http.request(method, url, content=body, headers={"content-type": kind})
            asked += 1
            what = f"{method} {url} {body!r:.100}: {answer.status_code} {answer.text[:300]}"
            assert answer.status_code < 500 or (path == COUNTS_FIRST and answer.status_code == 503), what
            content = described(operation, answer.status_code)
            if not content:
                continue
            got = answer.headers["content-type"].partition(";")[0]
            assert got in content or got == "application/json", what
            if answer.status_code == 200 and len(answer.text.splitlines()) > 1:
                continue  # a stream of receipts
            schema = next(iter(content.values()))["schema"]
            whole = {**schema, "components": document["components"]}
            fault = next(jsonschema.Draft202012Validator(whole).iter_errors(answer.json()), None)
            assert fault is None, f"{what}: {fault}"
    assert asked > 1_000
