"""A connection that has ended is freed at once, whatever it was used for: a broker makes garbage collections rarely."""

from __future__ import annotations

import asyncio
import gc
import random
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from app.transport.connection import Connection
from app.transport.core import ConnectionCore
from app.transport.tls import TlsLink
from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from app.wire.produce import encode_produce_request
from tests.handlers.conversation import batch
from tests.support.broker import running_broker
from tests.support.secured import certificates, listener, security
from tests.support.streams import HELLO, Answers, Credential, End, login
from tests.support.waiting import until

KINDS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
USES = ("hello", "produce and fetch", "parked fetch", "bad bytes", "wrong password", "half a login", "half a handshake")


class Client:
    """One connection, by TLS if there is a ``context``."""

    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        self._port = port
        self._end = End(context)
        self._answers = Answers()

    async def use(self, how: str, credential: Credential | None) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(self._end.opening())
        while how != "half a handshake" and not self._end.shaken:
            self._writer.write(self._end.take(await self._reader.read(65_536)))
        if credential is not None and how != "half a handshake":
            said = login(credential, random.Random(1))
            data = next(said, None)
            while data is not None:
                answer = await self._ask(data)
                if how == "half a login":
                    break
                with suppress(StopIteration):
                    data = said.send(answer)
                    continue
                data = None
        if how == "hello":
            await self._ask(HELLO)
        elif how == "produce and fetch":
            # So much that it leaves as a range of the file.
            produced = [("t", [(0, batch(value=bytes(500_000)))])]
            await self._ask(b"".join(map(bytes, encode_produce_request(9, 1, "c", produced, acks=1, timeout_ms=1000))))
            await self._ask(
                encode_fetch_request(12, 1, "c", FetchRequest(max_wait_ms=0, topics=[("t", [FetchPartition(0)])]))
            )
        elif how == "parked fetch":
            wanted = FetchRequest(max_wait_ms=60_000, min_bytes=1 << 24, topics=[("t", [FetchPartition(0)])])
            parked = encode_fetch_request(12, 1, "c", wanted)
            await self._ask(HELLO, behind=parked)
        elif how == "bad bytes":
            await self._ask((32).to_bytes(4, "big") + b"\x7f" * 32)
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _ask(self, data: bytes, *, behind: bytes = b"") -> object:
        """Wait for the answer to ``data``."""
        self._answers.sent += data + behind
        self._writer.write(self._end.seal(data + behind))
        count = self._answers.count
        while self._answers.count == count:
            came = await self._reader.read(1 << 20)
            if not came:
                return None
            self._end.take(came)
            self._answers.take(self._end.plain)
            self._end.plain.clear()
        return self._answers.last


def kept() -> list[object]:
    return [one for one in gc.get_objects() if isinstance(one, Connection | ConnectionCore | TlsLink)]


@pytest.mark.ci
@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_of_a_connection_waits_for_a_garbage_collection(tmp_path: Path, kind: str) -> None:
    folder = certificates(tmp_path / "c") if kind.endswith("SSL") else None
    context = ssl.create_default_context(cafile=str(folder / "ca.pem")) if folder is not None else None
    settings = {"connection.failed.authentication.delay.ms": "0"}
    async with running_broker(tmp_path, security=settings, **security(listener(kind, folder))) as broker:
        await broker.create_topic("t")
        for how in USES:
            credential = None
            if kind.startswith("SASL"):
                credential = Credential("PLAIN", "alice", "wrong" if how == "wrong password" else "alice-secret")
            await Client(broker.node.port, context).use(how, credential)  # whatever is made once
            gc.collect()
            gc.disable()
            try:
                for _ in range(3):
                    await Client(broker.node.port, context).use(how, credential)
                await until(lambda: not broker.node.server._connections and not broker.node.server._tasks)
                await asyncio.sleep(0)
                assert kept() == [], how
            finally:
                gc.enable()
