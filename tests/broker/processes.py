"""A broker in a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from app.wire.apikeys import ApiKey
from app.wire.apis.create_topics import CreatableTopic, CreateTopicsRequest
from tests.handlers.conversation import Talk

SCRIPT = """
import json, os, sys
from app.broker.start.process import serve
from app.configs import BrokerConfig
from app.core.errors import FirnError

def ready(broker):
    print(json.dumps({"port": broker.node.port, "store": broker.store_process_id}), flush=True)

settings = json.loads(sys.argv[1])
try:
    serve(BrokerConfig(**settings), on_ready=ready)
except FirnError as error:
    print(json.dumps({"error": str(error)}), flush=True)
    sys.exit(3)
"""


class Running:
    def __init__(self, process: asyncio.subprocess.Process, told: dict[str, Any]) -> None:
        self.process = process
        self.pid = process.pid
        self.told = told

    @property
    def port(self) -> int:
        return int(self.told["port"])

    def store_process(self) -> psutil.Process | None:
        for child in psutil.Process(self.pid).children():
            try:
                if "app.tiering.store.store_process" in child.cmdline():
                    return child
            except psutil.Error:
                continue
        return None


async def start(path: Path, **settings: Any) -> Running:
    config = {
        "data_dir": str(path / "data"),
        "store_url": f"file://{path}/store",
        "listen_port": 0,
        "http_address": "off",
        "firn_log_dir_free_bytes_min": 0,
    } | settings
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT, json.dumps(config), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(90):
        line = await process.stdout.readline()
    if not line:
        assert process.stderr is not None
        raise AssertionError((await process.stderr.read()).decode())
    return Running(process, json.loads(line))


@asynccontextmanager
async def broker(path: Path, **settings: Any) -> AsyncIterator[Running]:
    running = await start(path, **settings)
    try:
        yield running
    finally:
        if running.process.returncode is None:
            running.process.terminate()
        async with asyncio.timeout(60):
            await running.process.communicate()


async def make_topic(client: Talk, name: str, **configs: str) -> None:
    from app.wire.apis.create_topics import CreatableTopicConfig

    answer = await client.ask(
        ApiKey.CREATE_TOPICS,
        7,
        CreateTopicsRequest(
            [
                CreatableTopic(
                    name,
                    1,
                    1,
                    configs=[CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()],
                )
            ],
            20_000,
        ),
    )
    assert answer.topics[0].error_code == 0, answer
