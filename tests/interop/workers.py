"""Members of share groups."""

from __future__ import annotations

import time

from app.wire.apikeys import ApiKey
from tests.interop.java_programs import JavaProgram
from tests.interop.peers import make, request
from tests.interop.serving import Raw, Served

GROUP_RESOURCE = 32
DEADLINE_S = 60.0


class Worker:
    """One share consumer of the Java process."""

    count = 0

    def __init__(self, java: JavaProgram, firn: Served, group: str, topic: str) -> None:
        Worker.count += 1
        self._java = java
        self._name = f"w{Worker.count}"
        self("open", f"bootstrap.servers={firn.bootstrap}", f"group.id={group}")
        self("subscribe", topic)

    def ask(self, *words: object) -> str:
        return self._java.ask(self._name, *words)

    def __call__(self, *words: object) -> list[str]:
        answer = self.ask(*words)
        status, *found = answer.strip().split(" ")
        assert status == "ok", answer
        return found

    def take(self, count: int, how: str = "accept") -> list[str]:
        """Poll until so many records came, and say of each what it is worth; values with how often they were delivered."""
        taken: list[str] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(taken) < count:
            assert time.monotonic() < deadline, taken
            polled = self("poll", 100)
            if polled:
                self("acknowledge", how)
                self("commit")
            taken += polled
        return taken


def configure(firn: Served, group: str, **configs: str) -> None:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    changes = [
        make(key, "AlterableConfig", name=name.replace("_", "."), config_operation=0, value=value)
        for name, value in configs.items()
    ]
    resource = make(key, "AlterConfigsResource", resource_type=GROUP_RESOURCE, resource_name=group, configs=changes)
    with Raw(firn.port) as raw:
        (answer,) = raw.ask(key, 1, request(key, resources=[resource])).responses
    assert answer.error_code == 0, answer
