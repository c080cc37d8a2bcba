"""The audit log of a whole broker: what becomes a line, and what the lines say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.security.acls import Operation
from tests.broker.test_authorisation import ALICE, TOPIC, guarded, written
from tests.support.rights import SEEN


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


async def test_a_refused_request_is_one_line_and_those_like_it_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    async with guarded(tmp_path, firn_audit_log_path=str(path)) as broker, broker.as_user(ALICE) as alice:
        for _ in range(3):
            assert await written(alice) != 0
        await broker.allow((Operation.WRITE, TOPIC, SEEN))
        assert await written(alice) == 0
    denied = [line for line in lines_of(path) if line["outcome"] == "denied"]
    assert [line["count"] for line in denied] == [1, 2]
    assert denied[0]["principal"] == ALICE
    assert denied[0]["host"] == "127.0.0.1"
    assert denied[0]["request"] == "PRODUCE"
    assert denied[0]["client_id"] == "test"
    assert denied[0]["resources"] == [{"operation": "WRITE", "type": "TOPIC", "name": SEEN}]
    assert denied[1]["since"] <= denied[1]["time"]
    assert path.stat().st_mode & 0o777 == 0o600
