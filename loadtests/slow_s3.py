"""An S3 server over a directory, with a wait before every answer: what a bucket some way off costs in round trips.

    python -m loadtests.slow_s3 DIRECTORY --delay-ms 50

prints its port on the first line and serves until it is ended. The objects are the files of a directory store, so a bucket
that was built on a disk can be started from as if it were far away. GetObject with ranges, HeadObject, PutObject with
If-None-Match, DeleteObject, ListObjectsV2 and an empty ListMultipartUploads are there: what a broker needs to start and to
serve; multipart uploads are answered 501. Signatures are not looked at.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import httptools
import uvloop

PAGE_KEYS_MAX = 1000


class Directory:
    """Objects of one bucket as files under ``root``; names with a leading dot are a directory store's own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, key: str) -> bytes | None:
        path = self.root / key
        return path.read_bytes() if path.is_file() else None

    def put(self, key: str, data: bytes, *, only_new: bool) -> bool:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("xb" if only_new else "wb") as file:
                file.write(data)
        except FileExistsError:
            return False
        return True

    def delete(self, key: str) -> None:
        (self.root / key).unlink(missing_ok=True)

    def keys(self, prefix: str) -> list[str]:
        base = self.root / prefix.rpartition("/")[0]
        found = []
        for folder, folders, files in os.walk(base):
            folders[:] = [name for name in folders if not name.startswith(".")]
            at = os.path.relpath(folder, self.root)
            found += [name if at == "." else f"{at}/{name}" for name in files if not name.startswith(".")]
        return sorted(key for key in found if key.startswith(prefix))


class Connection(asyncio.Protocol):
    """One client, keep-alive; requests on it are answered one after another, as HTTP/1.1 clients send them."""

    def __init__(self, directory: Directory, delay_s: float) -> None:
        self.directory, self.delay_s = directory, delay_s
        self.parser = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport | None = None
        self.url = b""
        self.headers: dict[str, str] = {}
        self.body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.url, self.headers, self.body = b"", {}, bytearray()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        answer = self.answer(self.parser.get_method().decode())
        asyncio.get_running_loop().call_later(self.delay_s, self.send, answer)

    def send(self, answer: bytes) -> None:
        if self.transport is not None:
            self.transport.write(answer)

    def answer(self, method: str) -> bytes:
        parts = urlsplit(self.url.decode())
        _, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = parse_qs(parts.query, keep_blank_values=True)
        match method:
            case "GET" if not key:
                return self.list_uploads() if "uploads" in query else self.list_objects(query)
            case "GET" | "HEAD":
                return self.get(key, head=method == "HEAD")
            case "PUT" if not query or set(query) == {"x-id"}:
                only_new = self.headers.get("if-none-match") == "*"
                if self.directory.put(key, self.payload(), only_new=only_new):
                    return _response(200, b"", {"ETag": '"0"'})
                return _error(412, "PreconditionFailed")
            case "DELETE" if not query or set(query) == {"x-id"}:
                self.directory.delete(key)
                return _response(204, b"")
            case _:
                return _error(501, "NotImplemented")

    def payload(self) -> bytes:
        """The object's bytes; a streaming signature wraps them in chunks of its own."""
        if "aws-chunked" not in self.headers.get("content-encoding", ""):
            return bytes(self.body)
        data, position = bytearray(), 0
        while True:
            line_end = self.body.index(b"\r\n", position)
            size = int(bytes(self.body[position:line_end]).partition(b";")[0], 16)
            if not size:
                return bytes(data)
            data += self.body[line_end + 2 : line_end + 2 + size]
            position = line_end + 2 + size + 2

    def get(self, key: str, *, head: bool) -> bytes:
        data = self.directory.get(key)
        if data is None:
            return _response(404, b"") if head else _error(404, "NoSuchKey")
        extra = {"Last-Modified": formatdate(usegmt=True), "ETag": '"0"'}
        wanted = self.headers.get("range", "")
        if not wanted:
            return _response(200, data, extra, without_body=head)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, len(data) - int(last))
        end = min(int(last) + 1, len(data)) if first and last else len(data)
        if start >= end:
            return _error(416, "InvalidRange")
        return _response(206, data[start:end], extra | {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

    def list_objects(self, query: dict[str, list[str]]) -> bytes:
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        limit = min(int(query.get("max-keys", ["1000"])[0]), PAGE_KEYS_MAX)
        keys = [key for key in self.directory.keys(query.get("prefix", [""])[0]) if key > after]
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2025-01-01T00:00:00.000Z</LastModified>"
            f"<Size>{(self.directory.root / key).stat().st_size}</Size></Contents>"
            for key in keys[:limit]
        )
        more = len(keys) > limit
        token = f"<NextContinuationToken>{escape(keys[limit - 1])}</NextContinuationToken>" if more else ""
        return _xml(
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}</ListBucketResult>"
        )

    def list_uploads(self) -> bytes:
        return _xml("<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>")


def _response(status: int, body: bytes, headers: dict[str, str] | None = None, *, without_body: bool = False) -> bytes:
    head = [f"HTTP/1.1 {status} -", *(f"{name}: {value}" for name, value in (headers or {}).items())]
    if status != 204:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + (b"" if without_body else body)


def _xml(text: str) -> bytes:
    return _response(200, f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode(), {"Content-Type": "application/xml"})


def _error(status: int, code: str) -> bytes:
    body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return _response(status, body.encode(), {"Content-Type": "application/xml"})


async def _serve(root: Path, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(Directory(root), delay_s), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--delay-ms", type=float, default=50.0)
    arguments = parser.parse_args()
    uvloop.run(_serve(arguments.directory, arguments.delay_ms / 1000))
