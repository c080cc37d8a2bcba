"""Requests that schemathesis makes of the OpenAPI document: no fault of the server, and only answers that it describes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app.metadata.image.records import REGISTRY_LEVEL
from tests.http.processes import http_process
from tests.support.broker import RunningBroker, running_broker

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "response_headers_conformance", "unsupported_method", "allow_header_conformance",
)  # fmt: skip
EXAMPLES = 4
"""Generated requests of each operation, beside those of the document and those at the bounds of its types."""
ENDS_THE_BROKER, COUNTS_FIRST = "/v1/drain", "/v1/cost"
"""The second one answers 503 in the first minute of a broker."""
THINGS_THAT_ARE_THERE = """
[parameters]
"path.cluster_id" = "{cluster_id}"
"path.topic_name" = "flights"
"path.partition_id" = 0
"path.broker_id" = 1
"path.subject" = "flights-value"
"path.version" = "1"
"""


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path, num_partitions=1, new_level=REGISTRY_LEVEL) as running:
        await running.create_topic("flights", 1)
        yield running


@pytest.mark.ci
async def test_no_generated_request_finds_an_answer_that_the_document_does_not_describe(
    broker: RunningBroker, tmp_path: Path
) -> None:
    async with http_process(broker) as server:
        base = f"http://localhost:{server.port}"
        async with httpx.AsyncClient(base_url=base) as client:
            body = {"schema": '"string"'}
            assert (await client.post("/subjects/flights-value/versions", json=body)).status_code == 200
        settings = tmp_path / "schemathesis.toml"
        settings.write_text(THINGS_THAT_ARE_THERE.format(cluster_id=broker.node.cluster.image.cluster_id))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(settings), "run", f"{base}/openapi.json"),
            *("--max-examples", str(EXAMPLES), "--seed", "1", "--phases", "examples,coverage,fuzzing", "--no-shrink"),
            *("--exclude-path", ENDS_THE_BROKER, "--exclude-path", COUNTS_FIRST, "--checks", ",".join(CHECKS)),
            *("--continue-on-failure", "--warnings", "off", "--no-color"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()
    generated = next(line for line in told.decode().splitlines() if " generated" in line)
    assert int(generated.split()[0]) > 3_000, "the document has about 120 operations"
