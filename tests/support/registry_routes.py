"""The HTTP application with a log of schemas in memory instead of brokers."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import httpx

from app.http.application import create_app
from app.http.gateway import Gateway, HttpSettings
from app.http.registry.followed import FollowedLogs
from app.machine.runtime import SystemClock
from app.registry.ownership import OWNER_KEY, Ownership, encode_ownership
from app.registry.record_json import KeyType, Malformed, read_key
from app.registry.subjects import read_subject
from tests.support.schema_log import MemorySchemaLog

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class OwnedLog(MemorySchemaLog):
    """As the leader's log: a batch with a schema gets the record of the greatest ids."""

    def put(self, *records: tuple[bytes, bytes | None]) -> None:
        greatest = dict(getattr(self, "greatest", {}))
        for key, value in records:
            try:
                found = read_key(key)
            except Malformed:
                continue
            if found.kind is KeyType.SCHEMA and value is not None:
                context = read_subject(found.subject or "").context
                greatest[context] = max(greatest.get(context, 0), json.loads(value)["id"])
        self.greatest = greatest
        super().put(*records, (OWNER_KEY, encode_ownership(Ownership(greatest))))


class Client:
    """Asks the routes, without a socket."""

    def __init__(self, log: MemorySchemaLog | None = None) -> None:
        self.log = OwnedLog() if log is None else log
        settings = HttpSettings(bootstrap=(("127.0.0.1", 1),))
        app = create_app(settings, clock=SystemClock(), rng=random.Random(1))
        app.state.schema_logs = FollowedLogs(lambda _: self.log)
        app.state.callers = None
        app.state.gateway = Gateway(settings, SimpleNamespace(), SystemClock(), None, None)  # type: ignore[arg-type]
        self.app = app
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Returns: the status, and the decoded body."""
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        sent: Mapping[str, str] = {"Content-Type": MEDIA_TYPE, **headers}
        answer = await self.http.request(method, path, content=content, headers=sent)
        assert answer.headers["content-type"] in (MEDIA_TYPE, "application/json"), answer.headers
        return answer.status_code, answer.json()

    async def good(self, method: str, path: str, body: Any = None) -> Any:
        """The body of an answer of status 200."""
        status, found = await self.ask(method, path, body)
        assert status == 200, found
        return found

    async def refused(self, method: str, path: str, body: Any = None) -> tuple[int, int]:
        """Status and error code of an answer with an error."""
        status, found = await self.ask(method, path, body)
        assert status >= 400, found
        assert found["message"]
        return status, found["error_code"]

    async def register(self, subject: str, schema: Any, **more: Any) -> int:
        """The id of a registered schema."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        found = await self.good("POST", f"/subjects/{subject}/versions", {"schema": text, **more})
        assert found.keys() == {"id"}
        number: int = found["id"]
        return number


async def register(http: httpx.AsyncClient, subject: str, text: str, kind: str = "AVRO") -> int:
    """Register a schema by any client of HTTP. Returns: its id."""
    answer = await http.post(f"/subjects/{subject}/versions", json={"schema": text, "schemaType": kind})
    assert answer.status_code == 200, answer.text
    schema_id: int = answer.json()["id"]
    return schema_id
