"""Clients of REST v2, and of its consumer instances."""

from __future__ import annotations

from typing import Any

import httpx

from tests.support.broker import RunningBroker

V2 = "application/vnd.kafka.v2+json"


class Rest:
    """A client of REST v2."""

    def __init__(self, http: httpx.AsyncClient, broker: RunningBroker) -> None:
        self.http = http
        self.broker = broker

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        sent = {"accept": V2, **({"content-type": V2} if body is not None else {})}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.request(method, path, json=body, headers=sent)

    async def produce(self, topic: str, *values: Any, partition: int | None = None) -> list[dict[str, Any]]:
        where = f"/topics/{topic}" if partition is None else f"/topics/{topic}/partitions/{partition}"
        body = {"records": [{"value": value} for value in values]}
        answer = await self.ask("POST", where, body, content_type="application/vnd.kafka.json.v2+json")
        assert answer.status_code == 200, answer.text
        offsets: list[dict[str, Any]] = answer.json()["offsets"]
        return offsets

    async def instance(self, group: str, name: str | None = None, **settings: Any) -> Instance:
        """A new instance that reads JSON from the beginning, if the settings do not say otherwise."""
        body = {"format": "json", "auto.offset.reset": "earliest", **settings, **({"name": name} if name else {})}
        answer = await self.ask("POST", f"/consumers/{group}", body)
        assert answer.status_code == 200, answer.text
        return Instance(self, answer.json()["base_uri"], body["format"])


class Instance:
    """An instance and its format."""

    def __init__(self, rest: Rest, uri: str, form: str) -> None:
        self.rest = rest
        self.uri = uri
        self.form = form

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return await self.rest.ask(method, f"{self.uri}{path}", body, **headers)

    async def do(self, method: str, path: str, body: Any = None) -> Any:
        """The body of a request that is served."""
        answer = await self.ask(method, path, body)
        assert answer.status_code in (200, 204), answer.text
        return answer.json() if answer.content else None

    async def subscribe(self, *topics: str) -> None:
        await self.do("POST", "/subscription", {"topics": list(topics)})

    async def read(self, **query: int) -> list[Any]:
        """The records of one response."""
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        answer = await self.ask("GET", f"/records?{asked}", accept=f"application/vnd.kafka.{self.form}.v2+json")
        assert answer.status_code == 200, answer.text
        found: list[Any] = answer.json()
        return found

    async def read_all(self, count: int) -> list[Any]:
        """The values of the next ``count`` records or more."""
        found: list[Any] = []
        while len(found) < count:
            found += [record["value"] for record in await self.read(timeout=1_000)]
        return found

    async def committed(self, topic: str, partition: int = 0) -> int | None:
        body = {"partitions": [{"topic": topic, "partition": partition}]}
        offsets = (await self.do("GET", "/offsets", body))["offsets"]
        return offsets[0]["offset"] if offsets else None
