"""An S3 server over a directory, with a wait before every answer and a limit on its rate: what a bucket some way off costs.

    python -m loadtests.slow_s3 DIRECTORY --delay-ms 50 --mb-per-s 400 --discard wal/

prints its port on the first line and serves until it is ended. The objects are the files of a directory store, so a bucket
that was built on a disk can be started from as if it were far away. There is what a broker needs: GetObject with ranges,
HeadObject, PutObject and CompleteMultipartUpload with If-None-Match, multipart uploads, DeleteObject, DeleteObjects,
ListObjectsV2 and an empty ListMultipartUploads. Signatures are not looked at. A ranged GET is one ``sendfile``, so that it
is the client that is measured: a thread per connection, which answers its requests one after another as HTTP/1.1 asks.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import threading
import time
import uuid
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from email.utils import formatdate
from itertools import count
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE_KEYS_MAX = 1000
PIECE_BYTES = 1 << 18
HEAD_BYTES_MAX = 64 << 10
UPLOADS = ".uploads"
KEPT_BYTES = 64 << 10
"""Of an object whose key has what ``--discard`` says, this much of its end is kept; the rest reads as zeros."""


class Pace:
    """A rate that all connections share."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._lock = threading.Lock()

    def wait(self, size: int) -> None:
        """Until it is the turn of these bytes."""
        if not self._bytes_per_s:
            return
        with self._lock:
            now = time.monotonic()
            turn = max(self._free_at, now - PIECE_BYTES / self._bytes_per_s)
            self._free_at = turn + size / self._bytes_per_s
        if turn > now:
            time.sleep(turn - now)


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    """What goes out: a head, then bytes or a range of a file."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    file: Path | None = None
    start: int = 0
    length: int = 0


class Directory:
    """Objects of one bucket as files under ``root``; names with a leading dot are a directory store's own."""

    def __init__(self, root: Path, discarded: str = "") -> None:
        self.root = root
        self._discarded = discarded
        self._lock = threading.Lock()
        self._sizes = dict(self._there())
        self._keys = sorted(self._sizes)

    def put(self, key: str, data: bytes, *, only_new: bool) -> bool:
        whole = self.root / f".put-{uuid.uuid4().hex}"
        if self._discarded and self._discarded in key and len(data) > KEPT_BYTES:
            with whole.open("wb") as file:
                file.seek(len(data) - KEPT_BYTES)
                file.write(data[-KEPT_BYTES:])
        else:
            whole.write_bytes(data)
        return self.move_in(whole, key, only_new=only_new)

    def move_in(self, whole: Path, key: str, *, only_new: bool) -> bool:
        """Give a whole file its name."""
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        size_bytes = whole.stat().st_size
        if only_new:
            try:
                os.link(whole, path)
            except FileExistsError:
                return False
            finally:
                whole.unlink()
        else:
            whole.replace(path)
        with self._lock:
            if key not in self._sizes:
                insort(self._keys, key)
            self._sizes[key] = size_bytes
        return True

    def delete(self, key: str) -> None:
        (self.root / key).unlink(missing_ok=True)
        with self._lock:
            if self._sizes.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]

    def keys(self, prefix: str, after: str, limit: int) -> list[tuple[str, int]]:
        """With sizes in bytes, in order: of the directory at the start, and as this process has changed it. A server does not walk
        its whole bucket for a page."""
        with self._lock:
            start = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
            found = self._keys[start : start + limit]
            return [(key, self._sizes[key]) for key in found if key.startswith(prefix)]

    def _there(self) -> Iterator[tuple[str, int]]:
        for folder, folders, files in os.walk(self.root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            at = os.path.relpath(folder, self.root)
            for name in files:
                if not name.startswith("."):
                    yield name if at == "." else f"{at}/{name}", os.path.getsize(os.path.join(folder, name))


class Bucket:
    """The operations."""

    def __init__(self, root: Path, discarded: str = "") -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.directory = Directory(root, discarded)
        self._numbers = count()

    def answer(self, request: Request) -> Answer:
        _, _, key = unquote(request.path).lstrip("/").partition("/")
        query, upload = request.query, request.query.get("uploadId", [""])[0]
        only_new = request.headers.get("if-none-match") == "*"
        match request.method:
            case "GET" if not key:
                return _xml(EMPTY_UPLOADS) if "uploads" in query else self._list(query)
            case "GET" | "HEAD":
                return self._get(key, request.headers.get("range", ""), head=request.method == "HEAD")
            case "PUT" if upload:
                part = self._parts(upload) / query["partNumber"][0]
                part.write_bytes(_payload(request))
                return Answer(200, {"ETag": f'"{part.name}"'})
            case "PUT":
                done = self.directory.put(key, _payload(request), only_new=only_new)
                return Answer(200, {"ETag": '"0"'}) if done else _error(412, "PreconditionFailed")
            case "POST" if "uploads" in query:
                upload = f"{next(self._numbers)}-{uuid.uuid4().hex}"
                self._parts(upload).mkdir(parents=True)
                return _xml(
                    f"<InitiateMultipartUploadResult><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
                    "</InitiateMultipartUploadResult>"
                )
            case "POST" if upload:
                return self._complete(key, upload, only_new=only_new)
            case "POST" if "delete" in query:
                for name in re.findall(rb"<Key>(.*?)</Key>", request.body):
                    self.directory.delete(name.decode())
                return _xml("<DeleteResult></DeleteResult>")
            case "DELETE" if upload:
                shutil.rmtree(self._parts(upload), ignore_errors=True)
                return Answer(204, {})
            case "DELETE":
                self.directory.delete(key)
                return Answer(204, {})
            case _:
                return _error(501, "NotImplemented")

    def _parts(self, upload: str) -> Path:
        return self.directory.root / UPLOADS / upload

    def _complete(self, key: str, upload: str, *, only_new: bool) -> Answer:
        folder = self._parts(upload)
        if not folder.is_dir():
            return _error(404, "NoSuchUpload")
        whole = folder / "whole"
        with whole.open("wb") as out:
            for part in sorted((p for p in folder.iterdir() if p.name.isdigit()), key=lambda p: int(p.name)):
                with part.open("rb") as data:
                    while os.copy_file_range(data.fileno(), out.fileno(), 1 << 30):
                        pass
        done = self.directory.move_in(whole, key, only_new=only_new)
        shutil.rmtree(folder)
        if not done:
            return _error(412, "PreconditionFailed")
        return _xml(
            f'<CompleteMultipartUploadResult><Key>{escape(key)}</Key><ETag>"0"</ETag></CompleteMultipartUploadResult>'
        )

    def _get(self, key: str, wanted: str, *, head: bool) -> Answer:
        path = self.directory.root / key
        if not path.is_file():
            return Answer(404, {}) if head else _error(404, "NoSuchKey")
        size = path.stat().st_size
        headers = {"Last-Modified": formatdate(usegmt=True), "ETag": '"0"'}
        if head:
            return Answer(200, headers, length=size)
        if not wanted:
            return Answer(200, headers, file=path, length=size)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, size - int(last))
        end = min(int(last) + 1, size) if first and last else size
        if start >= end:
            return _error(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        return Answer(206, headers, file=path, start=start, length=end - start)

    def _list(self, query: dict[str, list[str]]) -> Answer:
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        limit = min(int(query.get("max-keys", ["1000"])[0]), PAGE_KEYS_MAX)
        keys = self.directory.keys(query.get("prefix", [""])[0], after, limit + 1)
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2025-01-01T00:00:00.000Z</LastModified>"
            f"<Size>{size_bytes}</Size></Contents>"
            for key, size_bytes in keys[:limit]
        )
        more = len(keys) > limit
        token = f"<NextContinuationToken>{escape(keys[limit - 1][0])}</NextContinuationToken>" if more else ""
        return _xml(
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}</ListBucketResult>"
        )


EMPTY_UPLOADS = "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>"


def _payload(request: Request) -> bytes:
    """The object's bytes; a streaming signature wraps them in chunks of its own."""
    if "aws-chunked" not in request.headers.get("content-encoding", ""):
        return request.body
    data, position = bytearray(), 0
    while True:
        line_end = request.body.index(b"\r\n", position)
        size = int(request.body[position:line_end].partition(b";")[0], 16)
        if not size:
            return bytes(data)
        data += request.body[line_end + 2 : line_end + 2 + size]
        position = line_end + 2 + size + 2


def _xml(text: str) -> Answer:
    return Answer(200, {"Content-Type": "application/xml"}, f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode())


def _error(status: int, code: str) -> Answer:
    return _xml(f"<Error><Code>{code}</Code><Message>{code}</Message></Error>")._replace(status=status)


def _requests(connection: socket.socket) -> Iterator[Request]:
    """What a client asks, until it closes."""
    buffer = b""
    while True:
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            got = connection.recv(HEAD_BYTES_MAX)
            if not got or len(buffer) > HEAD_BYTES_MAX:
                return
            buffer += got
        first, *lines = buffer[:end].decode().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        body = bytearray(buffer[end + 4 : end + 4 + length])
        buffer = buffer[end + 4 + length :]
        filled = len(body)
        if filled < length:
            body += bytes(length - filled)
            with memoryview(body) as view:
                while filled < length:
                    if not (got_bytes := connection.recv_into(view[filled:])):
                        return
                    filled += got_bytes
        parts = urlsplit(target)
        yield Request(method, parts.path, parse_qs(parts.query, keep_blank_values=True), headers, bytes(body))


def _serve(connection: socket.socket, bucket: Bucket, delay_s: float, pace: Pace) -> None:
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for request in _requests(connection):
                answer = bucket.answer(request)
                if delay_s:
                    time.sleep(delay_s)
                length = answer.length or len(answer.body)
                head = [f"HTTP/1.1 {answer.status} -", *(f"{name}: {value}" for name, value in answer.headers.items())]
                if answer.status != 204:
                    head.append(f"Content-Length: {length}")
                connection.sendall("\r\n".join([*head, "", ""]).encode() + answer.body)
                if answer.file is not None:
                    _send_file(connection, answer, pace)
        except ConnectionError:
            return


def _send_file(connection: socket.socket, answer: Answer, pace: Pace) -> None:
    assert answer.file is not None
    with answer.file.open("rb") as file:
        position, left = answer.start, answer.length
        while left:
            size = min(left, PIECE_BYTES)
            pace.wait(size)
            sent = os.sendfile(connection.fileno(), file.fileno(), position, size)
            position, left = position + sent, left - sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--delay-ms", type=float, default=50.0, help="before the first byte of every answer")
    parser.add_argument("--mb-per-s", type=float, default=0.0, help="over all connections; 0 is no limit")
    parser.add_argument(
        "--discard", default="", metavar="TEXT", help="keep only the ends of objects whose keys have it"
    )
    arguments = parser.parse_args()
    bucket, pace = Bucket(arguments.directory, arguments.discard), Pace(arguments.mb_per_s * 1e6)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        serving = (connection, bucket, arguments.delay_ms / 1000, pace)
        threading.Thread(target=_serve, args=serving, daemon=True).start()


if __name__ == "__main__":
    main()
