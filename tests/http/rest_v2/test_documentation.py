"""The examples of docs/rest-v2.md run as they are shown, and its tables name what the program has."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest
from fastapi import FastAPI

from app.http.consumers.settings import Format
from app.http.rest_v2.media import embedded_type
from tests.http.processes import http_process
from tests.support.broker import RunningBroker

PAGE = Path(__file__).parents[3] / "docs" / "rest-v2.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_examples_work_as_they_are_shown(broker: RunningBroker) -> None:
    await broker.create_topic("flights")
    script = "".join(BLOCK.findall(PAGE.read_text()))
    assert script.count("curl") == 7
    async with http_process(broker) as http:
        await http.until_ready()
        script = script.replace("127.0.0.1:8080", f"127.0.0.1:{http.port}").replace(
            "curl -s", "curl -sS --fail-with-body"
        )
        shell = await asyncio.create_subprocess_exec(
            *("bash", "-e", "-o", "pipefail", "-c", script),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await shell.communicate()
    assert shell.returncode == 0, output
    text = output.decode()
    for value in ('{"number": 1545}', '{"number": 1714}', '{"number": 1141}'):
        assert f'"value":{value}' in text, text


def test_every_format_that_is_served_is_in_the_table() -> None:
    page = PAGE.read_text()
    for form in Format:
        assert embedded_type(form) in page


def test_every_route_of_instances_is_in_the_table(application: FastAPI) -> None:
    page = PAGE.read_text()
    paths = {path for path in application.openapi()["paths"] if path.startswith("/consumers/")}
    assert len(paths) == 9
    for path in paths:
        last = path.rpartition("}")[2]
        assert f"…{last}" in page or not last, path
