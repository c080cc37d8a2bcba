"""A document from a web server: whatever the server does, the call ends with the document or with a sentence."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.machine.web import NotFetched, fetch
from tests.support.ports import free_port
from tests.support.secured import certificates
from tests.support.web import http_answer, web_server


async def get(url: str, **given: Any) -> bytes:
    return await fetch(urlsplit(url), **{"context": None, "seconds": 20.0, "bytes_max": 1000, **given})


async def test_a_document_comes_whole_in_one_piece_or_in_chunks() -> None:
    async with web_server(http_answer(b"x" * 1000)) as server:
        assert await get(f"http://127.0.0.1:{server.port}/keys?of=me") == b"x" * 1000
        server.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        assert await get(f"http://localhost:{server.port}") == b"abcde"
        assert server.asked == ["GET /keys?of=me HTTP/1.1", "GET / HTTP/1.1"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (http_answer(b"x" * 1001), "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000, "more than 1000 bytes"),
        (http_answer(b"x", "404 Not Found"), "there is no such document"),
        (http_answer(b"", "302 Found", "Location: http://169.254.169.254/"), "redirects are not followed"),
        (b"SSH-2.0-OpenSSH\r\n", "is no HTTP"),
        (b"", "is no HTTP|reset"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", "ends in the middle"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n", "is no HTTP"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"b" * 100_000 + b"\r\n\r\n", "is no HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnothing\r\n", "is no HTTP"),
    ],
)
async def test_what_is_no_document_is_a_sentence(answer: bytes, why: str) -> None:
    async with web_server(answer) as server:
        with pytest.raises(NotFetched, match=why):
            await get(f"http://127.0.0.1:{server.port}/")
        assert len(server.asked) == 1, "nobody else is asked"


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nA: ", b"HTTP/1.1 200 OK\r\n\r\n"])
@pytest.mark.parametrize("secure", [False, True])
async def test_a_server_that_goes_on_for_ever_is_left_after_the_time(
    tmp_path: Path, first: bytes, secure: bool
) -> None:
    folder = certificates(tmp_path) if secure else None

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while first:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)
        await asyncio.Event().wait()

    async with web_server(drip, None if folder is None else folder / "broker.pem") as server:
        context = None if folder is None else ssl.create_default_context(cafile=str(folder / "ca.pem"))
        scheme = "http" if folder is None else "https"
        with pytest.raises(NotFetched, match="no whole answer within"):
            await get(f"{scheme}://localhost:{server.port}/", seconds=0.5, context=context, bytes_max=1 << 20)


async def test_a_server_is_known_by_its_certificate_and_its_name(tmp_path: Path) -> None:
    folder, others = certificates(tmp_path / "one"), certificates(tmp_path / "two", "client")
    async with web_server(http_answer(b"here"), folder / "broker.pem") as server:
        url = f"https://localhost:{server.port}/"
        assert await get(url, context=ssl.create_default_context(cafile=str(folder / "ca.pem"))) == b"here"
        with pytest.raises(NotFetched, match="certificate is not trusted"):
            await get(url, context=ssl.create_default_context(cafile=str(others / "ca.pem")))
    async with web_server(http_answer(b"here"), others / "client.pem") as server:
        with pytest.raises(NotFetched, match="certificate is not trusted: hostname mismatch"):
            await get(
                f"https://localhost:{server.port}/", context=ssl.create_default_context(cafile=str(others / "ca.pem"))
            )


async def test_nobody_who_answers_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFetched, match="refused"):
        await get(f"http://127.0.0.1:{free_port()}/")

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # a resolver may be slow, and there may be none
    with pytest.raises(NotFetched, match="host is not known"):
        await get("http://no-such-host.invalid/")
