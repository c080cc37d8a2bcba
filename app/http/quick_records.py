"""Stores the only record of a small request without ASGI, which costs more than all other work for such a record.

``HttpConnection`` asks here once the head of a request has come, and again once its body is whole. A request goes the usual way
unless each of these holds, and nothing was done for it before:

- The process serves all requests with its own rights, and traces none.
- The path is that of the route without escapes, and the headers are among those that the route does not look at.
- ``Guard`` has served the same host before, to no web page.
- The body is one JSON object of at most ``PIECE_BYTES_MAX``: a record without headers and schemas.
- The cluster's id and the topic are known, and the producer takes the record at once.

Both ways give the same answers, and count the same (``tests/http/test_quick_records.py``).
"""

from __future__ import annotations

import re
from asyncio import Future
from time import perf_counter
from typing import Final, NamedTuple

from app.client.producer import Acknowledged
from app.core.errors import BrokerUnavailable, FirnError
from app.core.metrics import Registry
from app.http.bodies import PIECE_BYTES_MAX, WholeAnswer
from app.http.errors import answer_of
from app.http.front import Measures
from app.http.gateway import Gateway
from app.http.guard import Guard
from app.http.record_json import (
    PartReceipt,
    SchemaRecord,
    decode_record,
    error_receipt,
    part_receipt,
    receipt,
)
from app.http.serving import records_counters

METHOD: Final = "POST"
TARGETS_KEPT: Final = 1_024
"""Paths that are kept with their cluster and topic."""
_PATH: Final = re.compile(rb"/v3/clusters/([A-Za-z0-9_-]{1,64})/topics/([A-Za-z0-9._-]{1,249})/records")
_UNREAD: Final = frozenset((b"accept", b"accept-encoding", b"accept-language", b"content-type", b"user-agent"))
"""Headers that the route does not look at."""
_HOST: Final = b"host"
_LENGTH: Final = b"content-length"
_LENGTH_DIGITS: Final = len(str(PIECE_BYTES_MAX))
_CONNECTION: Final = b"connection"
_KEEP_ALIVE: Final = b"keep-alive"


class Target(NamedTuple):
    """The cluster and the topic in a path."""

    cluster_id: str
    topic: str


class Accepted(NamedTuple):
    """A record that the producer took over."""

    target: Target
    key: PartReceipt | None
    value: PartReceipt | None
    stored: Future[Acknowledged]
    began_s: float
    """When the head of its request had come."""


class QuickRecords:
    """The short way to the producer of a process."""

    def __init__(self, route: str, *, guard: Guard, measures: Measures, registry: Registry) -> None:
        """``route``: the path of the route that serves the usual way, by which requests are counted and errors told."""
        self._route = route
        self._guard = guard
        self._measures = measures
        self._stored_total, self._failed_total = records_counters(registry)
        self._targets: dict[bytes, Target | None] = {}
        self._heads: tuple[object, bytes] = None, b""
        self.gateway: Gateway | None = None
        """None before the application has started and after it has ended."""

    def target_of(
        self, path: bytes, headers: list[tuple[bytes, bytes]], server: tuple[str, int | None] | None, scheme: str
    ) -> Target | None:
        """Cluster and topic of a POST, if its head lets it take this way; else None. ``headers``: names in lower case."""
        try:
            target = self._targets[path]
        except KeyError:
            target = self._read(path)
        if target is None or self.gateway is None:
            return None
        host: bytes | None = None
        has_length = False
        for name, value in headers:
            if name == _HOST:
                if host is not None:
                    return None
                host = value
            elif name == _LENGTH:
                if len(value) > _LENGTH_DIGITS or not value.isdigit() or int(value) > PIECE_BYTES_MAX:
                    return None  # so that no larger body is held
                has_length = True
            elif name in _UNREAD:
                continue
            elif name != _CONNECTION or value.lower() != _KEEP_ALIVE:
                return None
        if host is None or not has_length or not self._guard.serves(host, server, scheme):
            return None
        return target

    def _read(self, path: bytes) -> Target | None:
        found = _PATH.fullmatch(path)
        target = None if found is None else Target(found[1].decode(), found[2].decode())
        if target is not None and len(self._targets) < TARGETS_KEPT:
            self._targets[path] = target
        return target

    def accept(self, target: Target, body: bytes, began_s: float) -> Accepted | None:
        """Hand the record of a whole body over to the producer; None, and nothing was done, if the request goes the usual way."""
        gateway = self.gateway
        if gateway is None or gateway.cluster.view.cluster_id != target.cluster_id:
            return None
        if gateway.cluster.known_topic(target.topic) is None:
            return None
        if len(body) > min(PIECE_BYTES_MAX, gateway.settings.record_bytes_max):
            return None
        try:
            record = decode_record(body)
            if isinstance(record, SchemaRecord) or record.headers:
                return None
            key, value = record.key, record.value
            stored = gateway.producer.send_at_once(
                target.topic,
                value.content,
                key=key.content,
                timestamp=record.timestamp,
                partition=record.partition,
            )
        except FirnError:
            return None  # the usual way finds the same, and says so
        return None if stored is None else Accepted(target, part_receipt(key), part_receipt(value), stored, began_s)

    def answer(self, accepted: Accepted) -> tuple[int, bytes]:
        """Status and receipt of a record whose future is done."""
        if accepted.stored.cancelled():
            error: FirnError | None = BrokerUnavailable("The record was taken back.")
        else:
            found = accepted.stored.exception()
            assert found is None or isinstance(found, FirnError)
            error = found
        if error is None:
            self._stored_total.value += 1
            return 200, receipt(accepted.target.cluster_id, accepted.key, accepted.value, accepted.stored.result())
        self._failed_total.value += 1
        if self.gateway is not None:
            self.gateway.tell(self._route, error)
        told = answer_of(error)
        return told.status, error_receipt(told)

    def response(
        self, status_line: bytes, default_headers: list[tuple[bytes, bytes]], status: int, line: bytes, *, close: bool
    ) -> bytes:
        """The bytes of a response. ``default_headers``: uvicorn's list, which it replaces every second."""
        if self._heads[0] is not default_headers:
            self._heads = default_headers, _lines(default_headers)
        if status != 200:
            own = _lines(WholeAnswer(status, line).raw_headers)
        else:
            own = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(line)
        ending = b"connection: close\r\n\r\n" if close else b"\r\n"
        return b"".join((status_line, self._heads[1], own, ending, line))

    def count(self, accepted: Accepted, status: int) -> None:
        """Count the request, as ``Front`` does."""
        self._measures.note(METHOD, self._route, status, perf_counter() - accepted.began_s)


def _lines(headers: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % one for one in headers])
