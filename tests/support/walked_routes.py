"""What the walk through all routes asks: an entry for each route of the HTTP application, with the worst that its limits allow."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from uuid import UUID

import uvicorn
from fastapi import FastAPI

from app.core.limits import MIB
from app.core.metrics import Registry
from app.http.application import create_app
from app.http.connections import ConnectionLimits, OpenConnections, connection_class
from app.http.gateway import ADMIN_BODY_BYTES_MAX, RECORD_BYTES_MAX, HttpSettings
from app.http.rest_v2.produce import BODY_BYTES_MAX as PRODUCE_BYTES_MAX
from app.http.rest_v2.produce import RECORDS_MAX as PRODUCED_MAX
from app.http.rest_v3.record_batches import BATCH_BYTES_MAX, ENTRIES_MAX
from app.machine.runtime import SystemClock
from tests.support.turns import RESPONSE_WAIT_S

STREAM_BYTES: Final = 2 * MIB
"""Of a stream of records, which has no end of its own."""
SMALL_BYTES: Final = 100_000
"""Of a stream of small records, of which a thousand are under way at a time."""


class Place(NamedTuple):
    """Where routes are asked."""

    cluster_id: str
    topic: str
    """With many partitions."""
    partitions: int
    broker: int
    group: str
    """With many members."""
    member: str
    lagging: str
    """A group that has committed an offset in each partition."""

    def filled(self, path: str) -> str:
        return path.format(**self._asdict(), partition=self.partitions - 1)


class Sent(NamedTuple):
    """One request."""

    label: str
    path: str
    body: Callable[[], bytes] | None = None
    headers: Mapping[str, str] = {}
    statuses: frozenset[int] = frozenset({200})
    token_of: str = ""
    """The page whose form is sent: its token comes before the body."""


Route = tuple[str, str]
Entry = Callable[[Place], Iterator[Sent]]


def _get(path: str, *statuses: int, headers: Mapping[str, str] = {}) -> Entry:
    def made(on: Place) -> Iterator[Sent]:
        filled = on.filled(path)
        yield Sent("as it is", filled, statuses=frozenset(statuses or (200,)))
        if headers:
            yield Sent("as a page", filled, headers=headers, statuses=frozenset(statuses or (200,)))
        long = "x" * 40_000
        yield Sent(
            "a long query", f"{filled}{'&' if '?' in filled else '?'}q={long}", statuses=frozenset(statuses or (200,))
        )
        if "{topic}" in path:
            yield Sent(
                "a long name",
                on._replace(topic=long).filled(path),
                statuses=BAD | NOT_FOUND,
            )
        if "{group}" in path:
            yield Sent("a long group", on._replace(group=long).filled(path), statuses=BAD | NOT_FOUND)

    return made


BAD: Final = frozenset({400, 413, 422})
NOT_FOUND: Final = frozenset({404})
ANY: Final = frozenset(range(200, 500))
JSON: Final = {"Content-Type": "application/json"}
FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
GZIP: Final = {**JSON, "Content-Encoding": "gzip"}


def _fill(piece: bytes, size: int, start: bytes = b"", end: bytes = b"") -> Callable[[], bytes]:
    return lambda: start + (piece * (size // len(piece) + 1))[: size - len(start) - len(end)] + end


def _whole(piece: bytes, size: int, start: bytes, end: bytes) -> Callable[[], bytes]:
    """As many whole pieces as fit."""
    return lambda: start + piece * ((size - len(start) - len(end)) // len(piece)) + end


def _bad_json(size: int) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Bodies that are hard to read, whatever they are for."""
    yield "nested arrays", _fill(b"[", size, b'{"a":')
    yield "nested objects", _fill(b'{"a":', size)
    yield "escapes", _fill(b"\\u00e4", size, b'{"a":"', b'"}')
    yield "members", _whole(b'"a":1,', size, b"{", b'"b":1}')
    yield "empty objects", _whole(b"{},", size, b'{"a":[', b"{}]}")
    yield "a number", _fill(b"9", size, b'{"a":', b"}")
    yield "white space", _fill(b" ", size)
    yield "zeros", lambda: bytes(size)


def _admin(path: str, *good: tuple[str, Callable[[], bytes]]) -> Entry:
    def made(on: Place) -> Iterator[Sent]:
        filled = on.filled(path)
        for label, body in (*good, *_bad_json(ADMIN_BODY_BYTES_MAX)):
            yield Sent(label, filled, body, JSON, ANY)
        yield Sent("in gzip", filled, lambda: gzip.compress(bytes(50 * MIB)), GZIP, ANY)

    return made


def _form(path: str) -> Entry:
    def made(on: Place) -> Iterator[Sent]:
        for label, body in (
            ("many fields", _whole(b"a=1&", 1_000_000, b"", b"")),
            ("a short form of many fields", _whole(b"a&", 30_000, b"", b"")),
            ("escapes", _whole(b"%C3%A4", 30_000, b"user=", b"")),
            ("zeros", lambda: bytes(1_000_000)),
        ):
            yield Sent(
                label,
                path,
                body,
                FORM,
                frozenset({303, 400, 403, 413}),
            )

    return made


def _console_acts(path: str) -> Entry:
    """Long forms that have the token of their page."""

    def made(on: Place) -> Iterator[Sent]:
        filled = on.filled(path)
        for label, end in (
            ("a long text", _fill(b"a", MIB, b"&key_kind=none&value_kind=text&value=")),
            ("escapes", _whole(b"%C3%A4", 3 * MIB, b"&key_kind=none&value_kind=text&value=", b"")),
            ("too long a text", _fill(b"a", 4 * MIB, b"&key_kind=none&value_kind=text&value=")),
            ("base64", _fill(b"AAAA", MIB, b"&key_kind=none&value_kind=base64&value=")),
            ("JSON", _whole(b"[],", MIB, b"&key_kind=none&value_kind=json&value=[", b"1]")),
            ("nested JSON", _fill(b"[", MIB, b"&key_kind=none&value_kind=json&value=")),
            ("by a schema", _whole(b"[],", MIB, b"&key_kind=none&value_kind=schema&value=[", b"1]")),
            ("markup", _fill(b"<", MIB, b"&key_kind=none&value_kind=json&value=")),
            ("headers", _whole(b"a:b%0A", MIB, b"&key_kind=none&value_kind=text&headers=", b"")),
        ):
            yield Sent(label, filled, end, FORM, ANY, filled)

    return made


def _console_follow(on: Place) -> Iterator[Sent]:
    yield Sent(
        "rows",
        f"/console/topics/{on.topic}/follow?partition=0&offset=0&rows=1",
        headers={"Accept": "text/event-stream"},
    )
    yield Sent("no partition", f"/console/topics/{on.topic}/follow?partition={on.partitions}", statuses=NOT_FOUND)


def _console_reset(on: Place) -> Iterator[Sent]:
    page = f"/console/groups/{on.lagging}/reset"
    yield Sent("the form", page)
    yield Sent("many partitions", f"{page}?to=earliest", statuses=frozenset({200, 400}))
    yield Sent("a topic", f"{page}?to=time&at=2020-01-01&topic={on.topic}", statuses=frozenset({200, 400}))
    yield Sent("one partition", f"{page}?to=latest&topic={on.topic}&partition=1")


def _console_resets(on: Place) -> Iterator[Sent]:
    page = f"/console/groups/{on.lagging}/reset"
    shown = f"{page}?to=latest&topic={on.topic}&partition=1"
    change = json.dumps([on.topic, 0, 0, 0]).encode() + b","
    for label, plan in (
        ("many changes", _whole(change, 500_000, b"&plan=[", change[:-1] + b"]")),
        ("nested", _fill(b"[", 500_000, b"&plan=")),
        ("too long", _fill(b"[", 600_000, b"&plan=")),
        ("changes", _whole(change, 400 * len(change), b"&plan=[", change[:-1] + b"]")),
    ):
        body = plan() + b"&name=" + on.lagging.encode()
        yield Sent(label, page, lambda body=body: body, FORM, ANY, shown)  # type: ignore[misc]


def _console_group(on: Place) -> Iterator[Sent]:
    yield Sent("many members", f"/console/groups/{on.group}")
    yield Sent("many lags", f"/console/groups/{on.lagging}")
    yield Sent("a long group", f"/console/groups/{'x' * 40_000}", statuses=BAD | NOT_FOUND)


def _new_topic(name: Callable[[int], str]) -> Callable[[], bytes]:
    configs = [{"name": name(index), "value": "1"} for index in range(20_000)]
    return lambda: json.dumps({"topic_name": "new", "configs": configs}).encode()


def _configs(count: int, member: str = "data") -> Callable[[], bytes]:
    return lambda: json.dumps(
        {member: [{"name": "retention.ms", "value": str(index)} for index in range(count)]}
    ).encode()


def _topics_configs(count: int) -> Callable[[], bytes]:
    setting = {"name": "retention.ms", "value": "-1"}
    rows = [{"topic_name": f"t{index}", "configs": [setting]} for index in range(count)]
    return lambda: json.dumps({"data": rows, "validate_only": True}).encode()


def _records(on: Place) -> Iterator[Sent]:
    path = f"/v3/clusters/{on.cluster_id}/topics/{on.topic}/records"
    small = b'{"partition_id":%d,"value":{"data":1}}'
    streams: list[tuple[str, Callable[[], bytes]]] = [
        ("empty records", _whole(b"{}", SMALL_BYTES, b"", b"")),
        ("small records", _whole(b'{"value":{"data":1}}', SMALL_BYTES, b"", b"")),
        ("one of each partition", lambda: b"".join(small % (index % on.partitions) for index in range(3_000))),
        ("records that are refused", _whole(b'{"a":1}', SMALL_BYTES, b"", b"")),
        ("records of unknown partitions", lambda: (small % 2_000_000_000) * 3_000),
        ("keys", lambda: b"".join(b'{"key":{"data":%d}}' % index for index in range(3_000))),
        ("a long value", _fill(b"v", RECORD_BYTES_MAX, b'{"value":{"type":"STRING","data":"', b'"}}')),
        ("a long value in base64", _whole(b"AAAA", RECORD_BYTES_MAX, b'{"value":{"type":"BINARY","data":"', b'"}}')),
        ("a long value of escapes", _whole(b"\\u00e4", RECORD_BYTES_MAX, b'{"value":{"type":"STRING","data":"', b'"}}')),
        ("a long value of JSON", _whole(b"{},", RECORD_BYTES_MAX, b'{"value":{"data":[', b"{}]}}")),
        ("headers", _whole(b'{"name":""},', RECORD_BYTES_MAX, b'{"headers":[', b'{"name":""}]}')),
        ("headers with values", _whole(b'{"name":"","value":"AAAA"},', RECORD_BYTES_MAX, b'{"headers":[', b'{"name":""}]}')),
        ("a long timestamp", _fill(b"2", STREAM_BYTES, b'{"timestamp":"', b'"}')),
        ("a long number", _fill(b"9", STREAM_BYTES, b'{"timestamp":', b"}")),
        *_bad_json(STREAM_BYTES),
    ]  # fmt: skip
    for label, body in streams:
        yield Sent(label, path, body, JSON, ANY)
    for label, body in streams[:3]:
        yield Sent(f"{label}, in gzip", path, lambda body=body: gzip.compress(body(), 1), GZIP, ANY)


def _reads(on: Place) -> Iterator[Sent]:
    """Reads of the partition that has much of everything: small batches, a large one, headers, and a long value."""
    path = on.filled(_TOPIC + "/partitions/0/records")
    most = "count=10000&bytes=16777216"
    yield from _get(_TOPIC + "/partitions/{partition}/records")(on)
    lines, events = {"Accept": "application/x-ndjson"}, {"Accept": "text/event-stream"}
    yield Sent("a page", f"{path}?{most}")
    yield Sent("as lines", f"{path}?{most}", None, lines)
    yield Sent("as events", f"{path}?count=3000", None, events)
    yield Sent("a stream", f"{path}?count=3000&follow=true", None, lines)
    yield Sent("of a key", f"{path}?{most}&key=none")
    yield Sent("as base64", f"{path}?{most}&rendering=binary")
    yield Sent("not committed alone", f"{path}?{most}&isolation=read_uncommitted")
    yield Sent("by time", f"{path}?timestamp=1&count=1")
    yield Sent("a long key", f"{path}?key={'x' * 40_000}", statuses=frozenset({200}) | BAD)
    yield Sent("a long token", f"{path}?offset={'9' * 40_000}", statuses=BAD)


def fillings(on: Place) -> Iterator[Sent]:
    """Requests after which the partition has what ``_reads`` reads."""
    path = f"/v3/clusters/{on.cluster_id}/topics/{on.topic}/records"
    to = b'{"partition_id":0,'
    heads = b'{"name":"h","value":"AAAA"},' * 9_000
    yield Sent("small", path, lambda: (to + b'"value":{"data":{"a":[1,2]}}}') * 3_000, JSON)
    yield Sent("headers", path, lambda: to + b'"headers":[' + heads + b'{"name":"h"}]}', JSON)
    long = b"v" * (900 * 1024)
    yield Sent("long", path, lambda: to + b'"value":{"type":"STRING","data":"' + long + b'"}}', JSON)
    listed = b"{}," * (300 * 1024) + b"{}"
    yield Sent("long JSON", path, lambda: to + b'"value":{"data":[' + listed + b"]}}", JSON)


def _batches(on: Place) -> Iterator[Sent]:
    path = f"/v3/clusters/{on.cluster_id}/topics/{on.topic}/records:batch"
    room = BATCH_BYTES_MAX // ENTRIES_MAX - 100

    def entries(count: int, part: Callable[[int], bytes]) -> Callable[[], bytes]:
        return lambda: (
            b'{"entries":[' + b",".join(b'{"id":"%d",' % index + part(index) + b"}" for index in range(count)) + b"]}"
        )

    heads = b'{"name":""},' * (room // 12 - 10)
    headers = b'"headers":[' + heads + b'{"name":""}]'
    value = b'"value":{"type":"STRING","data":"' + b"v" * (room - 100) + b'"}'
    escaped = b'"value":{"type":"STRING","data":"' + b"\\u00e4" * (room // 6 - 20) + b'"}'
    coded = b'"value":{"type":"BINARY","data":"' + b"AAAA" * (room // 4 - 20) + b'"}'
    listed = b'"value":{"data":[' + b"{}," * (room // 3 - 20) + b"{}]}"
    bodies: list[tuple[str, Callable[[], bytes]]] = [
        ("small entries", entries(ENTRIES_MAX, lambda index: b'"value":{"data":1}')),
        ("one of each partition", entries(ENTRIES_MAX, lambda index: b'"partition_id":%d' % (index % on.partitions))),
        ("headers", entries(ENTRIES_MAX, lambda index: headers)),
        ("long values", entries(ENTRIES_MAX, lambda index: value)),
        ("long values of escapes", entries(ENTRIES_MAX, lambda index: escaped)),
        ("long values in base64", entries(ENTRIES_MAX, lambda index: coded)),
        ("long values of JSON", entries(ENTRIES_MAX, lambda index: listed)),
        ("entries that are refused", entries(ENTRIES_MAX, lambda index: b'"a":1')),
        ("many headers", _whole(b'{"name":""},', 16 * MIB, b'{"entries":[{"id":"1","headers":[', b'{"name":""}]}]}')),
        ("too many entries", _whole(b'{"id":"1"},', STREAM_BYTES, b'{"entries":[', b'{"id":"2"}]}')),
        ("nested", _fill(b"[", BATCH_BYTES_MAX, b'{"entries":[{"id":"1","a":')),
        ("white space", _fill(b" ", BATCH_BYTES_MAX, b'{"entries":[')),
        ("white space first", _fill(b" ", BATCH_BYTES_MAX)),
    ]  # fmt: skip
    for label, body in bodies:
        yield Sent(label, path, body, JSON, ANY)


def _replacement(count: int) -> Callable[[], bytes]:
    ids = [str(UUID(int=index + 1)) for index in range(count)]
    return lambda: json.dumps(
        {"step": "begin", "inputs": ids, "segment_id": str(UUID(int=1 << 100)), "end_offset": 5}
    ).encode()


def _acls(count: int) -> Callable[[], bytes]:
    acl = {
        "resource_type": "TOPIC",
        "resource_name": "walked",
        "pattern_type": "LITERAL",
        "host": "*",
        "operation": "READ",
        "permission": "ALLOW",
    }
    return lambda: json.dumps({"data": [{**acl, "principal": f"User:{index}"} for index in range(count)]}).encode()


def _assignments(count: int, replicas: int = 1) -> Callable[[], bytes]:
    return lambda: json.dumps(
        {"topic_name": "new", "replicas_assignments": {str(index): [99] * replicas for index in range(count)}}
    ).encode()


def _short_assignments(count: int) -> Callable[[], bytes]:
    """The most lists that a body may have, under names of their own."""
    return lambda: (
        b'{"topic_name":"new","replicas_assignments":{%s}}' % b",".join(b'"%x":[9]' % index for index in range(count))
    )


CLUSTER: Final = "/v3/clusters/{cluster_id}"
BROKER: Final = CLUSTER + "/brokers/{broker_id}"
_BROKER: Final = CLUSTER + "/brokers/{broker}"
GROUP: Final = CLUSTER + "/consumer-groups/{consumer_group_id}"
_GROUP: Final = CLUSTER + "/consumer-groups/{group}"
_LAGGING: Final = CLUSTER + "/consumer-groups/{lagging}"
SHARE: Final = CLUSTER + "/share-groups/{group_id}"
_SHARE: Final = CLUSTER + "/share-groups/{group}"
CONSUMER: Final = "/consumers/{consumer_id}"
_CONSUMER: Final = "/consumers/{member}"


SUBJECT: Final = "/subjects/{subject}"
_SUBJECT: Final = "/subjects/walked-value"
_SCHEMA: Final = "/schemas/walked-value"


def _schema(text: Callable[[], str], **more: Any) -> Callable[[], bytes]:
    return lambda: json.dumps({"schema": text(), **more}).encode()


def _lists(member: str, count: int) -> Callable[[], bytes]:
    start = b'{"schema":"\\"string\\"","%s":{"properties":{},"a":[' % member.encode()
    return _whole(b"[],", 3 * count, start, b"[]]}}")


def _schemas(path: str) -> Entry:
    fields = [{"name": f"f{index}", "type": ["null", "string"], "default": None} for index in range(5_000)]
    record = {"type": "record", "name": "R", "fields": fields}
    return _admin(
        path,
        ("a schema", _schema(lambda: '"string"')),
        ("a wide record", _schema(lambda: json.dumps(record))),
        (
            "a wide object",
            _schema(lambda: json.dumps({"properties": {str(n): {} for n in range(20_000)}}), schemaType="JSON"),
        ),
        ("levels", _schema(lambda: "[" * 500_000)),
        ("a long text", _schema(lambda: "x" * 900_000)),
        ("references", _schema(lambda: '"R"', references=[{"name": "R", "subject": "a", "version": 1}] * 10_000)),
        ("lists in metadata", _lists("metadata", 30_000)),
        ("more lists in metadata", _lists("metadata", 340_000)),
    )


_READS: Final = (
    "/subjects",
    SUBJECT + "/versions",
    SUBJECT + "/versions/{version}",
    SUBJECT + "/versions/{version}/schema",
    SUBJECT + "/versions/{version}/referencedby",
    SUBJECT + "/metadata",
    "/schemas",
    "/schemas/types",
    "/schemas/ids/{schema_id}",
    "/schemas/ids/{schema_id}/schema",
    "/schemas/ids/{schema_id}/subjects",
    "/schemas/ids/{schema_id}/versions",
    "/schemas/guids/{guid}",
    "/schemas/guids/{guid}/ids",
    "/config",
    "/config/{subject}",
    "/mode",
    "/mode/{subject}",
    "/contexts",
    "/v1/metadata/id",
    "/v1/metadata/version",
    "/v1/metadata/deployment",
)
_DELETIONS: Final = (
    SUBJECT,
    SUBJECT + "/versions/{version}",
    "/config",
    "/config/{subject}",
    "/mode",
    "/mode/{subject}",
)


def _filled(path: str) -> str:
    for name, value in (("subject", "walked-value"), ("version", "1"), ("schema_id", "1"), ("guid", "x")):
        path = path.replace("{" + name + "}", value)
    return path


def _registry() -> Iterator[tuple[Route, Entry]]:
    """The routes of the schema registry."""
    for path in _READS:
        yield ("GET", path), _get(_filled(path), *ANY)
    for path in _DELETIONS:
        yield ("DELETE", path), _get(_filled(path), *ANY)
    for path in (SUBJECT, SUBJECT + "/versions", "/compatibility" + SUBJECT + "/versions"):
        yield ("POST", path), _schemas(_filled(path))
    yield ("POST", f"/compatibility{SUBJECT}/versions/{{version}}"), _schemas(f"/compatibility{_SUBJECT}/versions/1")
    for path in ("/config", "/config/{subject}"):
        yield (
            ("PUT", path),
            _admin(
                _filled(path),
                ("a level", lambda: b'{"compatibility":"NONE"}'),
                ("lists in metadata", _lists("defaultMetadata", 30_000)),
                ("more lists in metadata", _lists("defaultMetadata", 340_000)),
            ),
        )
    for path in ("/mode", "/mode/{subject}"):
        yield ("PUT", path), _admin(_filled(path), ("a mode", lambda: b'{"mode":"READWRITE"}'))
    for path in ("/exporters", "/exporters/{rest:path}", "/dek-registry", "/dek-registry/{rest:path}"):
        for method in ("GET", "POST", "PUT", "DELETE"):
            yield (method, path), _get(path.replace("{rest:path}", "a/b"), 404)


def _binary(count: int, record: bytes) -> Callable[[], bytes]:
    return lambda: b'{"records":[' + b",".join([record] * count) + b"]}"


def _produced(path: str) -> Entry:
    """Bodies of records of REST v2."""
    kinds = {kind: {"Content-Type": f"application/vnd.kafka.{kind}.v2+json"} for kind in ("json", "avro", "binary")}
    schema = b'{"value_schema":"{\\"type\\":\\"array\\",\\"items\\":\\"int\\"}","records":['

    def made(on: Place) -> Iterator[Sent]:
        filled = on.filled(path)
        room = PRODUCE_BYTES_MAX - 200
        bodies: list[tuple[str, str, Callable[[], bytes]]] = [
            ("small records", "binary", _binary(PRODUCED_MAX, b'{"value":"AAAA"}')),
            ("too many records", "binary", _binary(PRODUCED_MAX * 4, b'{"value":null}')),
            ("records that are refused", "binary", _binary(PRODUCED_MAX, b'{"a":1}')),
            ("a long value", "binary", _whole(b"AAAA", room, b'{"records":[{"value":"', b'"}]}')),
            ("a long value of escapes", "binary", _whole(b"\\u0041", room, b'{"records":[{"value":"', b'"}]}')),
            ("long JSON", "json", _whole(b"{},", room, b'{"records":[{"value":[', b"{}]}]}")),
            ("a long array of Avro", "avro", _whole(b"1,", MIB, schema + b'{"value":[', b"1]}]}")),
            ("small values of Avro", "avro", _whole(b'{"value":[1]},', 200_000, schema, b'{"value":[1]}]}')),
            ("white space", "json", _fill(b" ", room, b'{"records":[')),
            ("nested", "json", _fill(b"[", room, b'{"records":[{"value":')),
        ]
        for label, kind, body in bodies:
            yield Sent(label, filled, body, kinds[kind], ANY)

    return made


def _consumers() -> Iterator[tuple[Route, Entry]]:
    """The routes of consumer instances of REST v2."""
    group, instance = "/consumers/walked", "/consumers/{group_name}/instances/{instance}"
    used = f"{group}/instances/used"
    many = b",".join(b'{"topic":"wide","partition":%d,"offset":1}' % index for index in range(1_000))
    places = many.replace(b',"offset":1', b"")
    partitions, offsets = b'{"partitions":[' + places + b"]}", b'{"offsets":[' + many + b"]}"
    names = json.dumps({"topics": [f"t{index}" for index in range(1_000)]}).encode()
    yield ("POST", "/consumers/{group_name}"), _admin(group, ("used", lambda: b'{"name":"used"}'))
    for path, body in (
        ("/assignments", partitions), ("/positions", offsets), ("/positions/beginning", partitions),
        ("/positions/end", partitions), ("/offsets", offsets), ("/subscription", names),
    ):  # fmt: skip
        yield ("POST", instance + path), _admin(used + path, ("many", lambda body=body: body))  # type: ignore[misc]
    for path in ("/assignments", "/offsets", "/records", "/subscription"):
        yield ("GET", instance + path), _get(used + path, *ANY)
    yield ("DELETE", instance + "/subscription"), _get(used + "/subscription", *ANY)
    yield ("DELETE", instance), _get(f"{group}/instances/absent", 404)


TOPIC: Final = "/v3/clusters/{cluster_id}/topics/{topic_name}"
_TOPIC: Final = "/v3/clusters/{cluster_id}/topics/{topic}"

WALKED_ROUTES: Final[Mapping[Route, Entry]] = {
    **dict(_registry()),
    **dict(_consumers()),
    ("GET", "/brokers"): _get("/brokers"),
    ("GET", "/topics"): _get("/topics"),
    ("GET", "/topics/{topic_name}"): _get("/topics/{topic}"),
    ("GET", "/topics/{topic_name}/partitions"): _get("/topics/{topic}/partitions"),
    ("GET", "/topics/{topic_name}/partitions/{partition_id}"): _get("/topics/{topic}/partitions/{partition}"),
    ("GET", "/topics/{topic_name}/partitions/{partition_id}/offsets"): _get("/topics/{topic}/partitions/{partition}/offsets"),
    ("POST", "/topics/{topic_name}"): _produced("/topics/{topic}"),
    ("POST", "/topics/{topic_name}/partitions/{partition_id}"): _produced("/topics/{topic}/partitions/0"),
    ("GET", "/"): _get("/", headers={"Accept": "text/html"}),
    ("GET", "/console"): _get("/console", 303),
    ("GET", "/console/live"): _get("/console/live"),
    ("GET", "/console/live/topics"): _get("/console/live/topics?internal=1", 200, 400),
    ("GET", "/console/topics"): _get("/console/topics?internal=1", 200, 400),
    ("GET", "/console/topics/{topic_name}"): _get("/console/topics/{topic}?partition={partition}"),
    ("GET", "/console/topics/{topic_name}/messages"): _get("/console/topics/{topic}/messages?partition={partition}&contains=x"),
    ("GET", "/console/topics/{topic_name}/partitions"): _get("/console/topics/{topic}/partitions"),
    ("GET", "/console/topics/{topic_name}/groups"): _get("/console/topics/{topic}/groups"),
    ("GET", "/console/topics/{topic_name}/settings"): _get("/console/topics/{topic}/settings"),
    ("GET", "/console/topics/{topic_name}/produce"): _get("/console/topics/{topic}/produce"),
    ("POST", "/console/topics/{topic_name}/produce"): _console_acts("/console/topics/{topic}/produce"),
    ("GET", "/console/topics/{topic_name}/partitions/{partition_id}/messages/{offset}"): _get(
        "/console/topics/{topic}/partitions/0/messages/0", 200, 404
    ),
    ("GET", "/console/topics/{topic_name}/follow"): _console_follow,
    ("GET", "/console/groups/{group_id}/reset"): _console_reset,
    ("POST", "/console/groups/{group_id}/reset"): _console_resets,
    ("GET", "/console/topics/{topic_name}/export"): _get("/console/topics/{topic}/export?offset=0&contains=x"),
    ("GET", "/console/topics/{topic_name}/partitions/{partition_id}/messages/{offset}/resend"): _get(
        "/console/topics/{topic}/partitions/0/messages/0/resend?to={topic}", 200, 404
    ),
    ("POST", "/console/topics/{topic_name}/partitions/{partition_id}/messages/{offset}/resend"): _form(
        "/console/topics/wide/partitions/0/messages/0/resend"
    ),
    ("GET", "/console/topics/{topic_name}/partitions/{partition_id}/messages/{offset}/value"): _get(
        "/console/topics/{topic}/partitions/0/messages/0/value", 200, 404
    ),
    ("GET", "/console/groups"): _get("/console/groups", 200, 400),
    ("GET", "/console/brokers"): _get("/console/brokers"),
    ("GET", "/console/brokers/{broker_id}"): _get("/console/brokers/{broker}"),
    ("GET", "/console/users"): _get("/console/users", 200, 400),
    ("GET", "/console/quotas"): _get("/console/quotas", 200, 400),
    ("GET", "/console/store"): _get("/console/store"),
    ("GET", "/console/runbooks"): _get("/console/runbooks"),
    ("GET", "/console/runbooks/{name}"): _get("/console/runbooks/loop-stalls"),
    ("GET", "/console/transactions"): _get("/console/transactions"),
    ("GET", "/console/transactions/{transactional_id}"): _get("/console/transactions/transaction-0", 200, 404),
    ("GET", "/console/topics/{topic_name}/partitions/{partition_id}/producers"): _get(
        "/console/topics/{topic}/partitions/{partition}/producers"
    ),
    ("GET", "/console/schemas"): _get("/console/schemas", 200, 400),
    ("GET", "/console/schemas/{subject}"): _get("/console" + _SCHEMA, 200, 404),
    ("GET", "/console/schemas/{subject}/versions/{version}"): _get("/console" + _SCHEMA + "/versions/1", 200, 404),
    ("GET", "/console/access"): _get("/console/access", 200, 400),
    ("GET", "/console/cost"): _get("/console/cost"),
    ("GET", "/console/groups/{group_id}"): _console_group,
    ("GET", "/console/groups/{group_id}/live"): _get("/console/groups/{lagging}/live"),
    ("GET", "/console/assets/{name}"): _get("/console/assets/none.css", 404),
    ("GET", "/console/login"): _get("/console/login", 303),
    ("POST", "/console/login"): _form("/console/login"),
    ("POST", "/console/logout"): _form("/console/logout"),
    ("GET", "/docs"): _get("/docs"),
    ("GET", "/openapi.json"): _get("/openapi.json"),
    ("GET", "/healthz"): _get("/healthz"),
    ("GET", "/readyz"): _get("/readyz"),
    ("GET", "/metrics"): _get("/metrics"),
    ("GET", "/v1/cost"): _get("/v1/cost", 200, 503),
    ("POST", "/firn/v1/topics/{topic_name}/partitions/{partition_id}/replacements"): _admin(
        "/firn/v1/topics/{topic}/partitions/0/replacements", ("inputs", _replacement(9_999)), ("more", _replacement(25_000))
    ),
    ("GET", "/v3/clusters"): _get("/v3/clusters"),
    ("GET", "/v3/clusters/{cluster_id}"): _get("/v3/clusters/{cluster_id}"),
    ("GET", "/v3/clusters/{cluster_id}/brokers"): _get("/v3/clusters/{cluster_id}/brokers"),
    ("GET", "/v3/clusters/{cluster_id}/brokers/{broker_id}"): _get("/v3/clusters/{cluster_id}/brokers/{broker}"),
    ("GET", "/v3/clusters/{cluster_id}/brokers/{broker_id}/configs"): _get(
        "/v3/clusters/{cluster_id}/brokers/{broker}/configs"
    ),
    ("GET", "/v3/clusters/{cluster_id}/brokers/{broker_id}/configs/{name}"): _get(
        "/v3/clusters/{cluster_id}/brokers/{broker}/configs/retention.ms", 200, 404
    ),
    ("GET", "/v3/clusters/{cluster_id}/topics"): _get("/v3/clusters/{cluster_id}/topics"),
    ("POST", "/v3/clusters/{cluster_id}/topics"): _admin(
        "/v3/clusters/{cluster_id}/topics",
        ("settings", _new_topic(lambda index: "retention.ms")),
        ("names of settings", _new_topic(lambda index: f"x{index}")),
        ("a long name", lambda: json.dumps({"topic_name": "n" * 1_000_000}).encode()),
        ("assignments", _assignments(10_000)), ("more assignments", _assignments(50_000)),
        ("assignments to many brokers", _assignments(10_000, 20)),
        ("short assignments", _short_assignments(90_000)),
    ),
    ("GET", f"{CLUSTER}/topics/-/configs"): _get(CLUSTER + "/topics/-/configs"),
    ("GET", f"{TOPIC}/default-configs"): _get(CLUSTER + "/topics/not-there/default-configs"),
    ("GET", f"{CLUSTER}/topics/-/partitions/-/reassignment"): _get(CLUSTER + "/topics/-/partitions/-/reassignment"),
    ("GET", f"{TOPIC}/partitions/-/reassignment"): _get(_TOPIC + "/partitions/-/reassignment"),
    ("GET", f"{TOPIC}/partitions/{{partition_id}}/reassignment"): _get(_TOPIC + "/partitions/{partition}/reassignment"),
    ("GET", f"{TOPIC}/partitions/{{partition_id}}/offset"): _get(_TOPIC + "/partitions/{partition}/offset"),
    ("POST", f"{CLUSTER}/topics/-/configs:alter"): _admin(
        CLUSTER + "/topics/-/configs:alter", ("topics", _topics_configs(1_000)), ("more topics", _topics_configs(20_000))
    ),
    ("GET", f"{CLUSTER}/brokers/-/configs"): _get(CLUSTER + "/brokers/-/configs"),
    ("GET", f"{BROKER}/partition-replicas"): _get(_BROKER + "/partition-replicas"),
    ("POST", f"{BROKER}/configs:alter"): _admin(_BROKER + "/configs:alter", ("changes", _configs(1_000))),
    ("PUT", f"{BROKER}/configs/{{name}}"): _admin(_BROKER + "/configs/log.retention.ms", ("a value", lambda: b'{"value":"-1"}')),
    ("DELETE", f"{BROKER}/configs/{{name}}"): _get(_BROKER + "/configs/log.retention.ms", *ANY),
    ("GET", f"{CLUSTER}/broker-configs"): _get(CLUSTER + "/broker-configs"),
    ("POST", f"{CLUSTER}/broker-configs:alter"): _admin(CLUSTER + "/broker-configs:alter", ("changes", _configs(1_000))),
    ("GET", f"{CLUSTER}/broker-configs/{{name}}"): _get(CLUSTER + "/broker-configs/log.retention.ms", 200, 404),
    ("PUT", f"{CLUSTER}/broker-configs/{{name}}"): _admin(
        CLUSTER + "/broker-configs/log.retention.ms", ("a value", lambda: b'{"value":"-1"}')
    ),
    ("DELETE", f"{CLUSTER}/broker-configs/{{name}}"): _get(CLUSTER + "/broker-configs/log.retention.ms", *ANY),
    ("GET", f"{CLUSTER}/consumer-groups"): _get(CLUSTER + "/consumer-groups"),
    ("GET", GROUP): _get(_GROUP),
    ("GET", f"{GROUP}/consumers"): _get(_GROUP + "/consumers"),
    ("GET", GROUP + CONSUMER): _get(_GROUP + _CONSUMER),
    ("GET", f"{GROUP}{CONSUMER}/assignments"): _get(_GROUP + _CONSUMER + "/assignments"),
    ("GET", f"{GROUP}{CONSUMER}/assignments/{{topic_name}}/partitions/{{partition_id}}"): _get(
        _GROUP + _CONSUMER + "/assignments/{topic}/partitions/{partition}", 200, 404
    ),
    ("GET", f"{GROUP}/lags"): _get(_LAGGING + "/lags"),
    ("GET", f"{GROUP}/lags/{{topic_name}}/partitions/{{partition_id}}"): _get(_LAGGING + "/lags/{topic}/partitions/{partition}"),
    ("GET", f"{GROUP}/lag-summary"): _get(_LAGGING + "/lag-summary"),
    ("GET", f"{CLUSTER}/share-groups"): _get(CLUSTER + "/share-groups"),
    ("GET", SHARE): _get(_SHARE, 404),
    ("DELETE", SHARE): _get(_SHARE, 404),
    ("GET", f"{SHARE}/consumers"): _get(_SHARE + "/consumers", 404),
    ("GET", SHARE + CONSUMER): _get(_SHARE + _CONSUMER, 404),
    ("GET", f"{SHARE}{CONSUMER}/assignments"): _get(_SHARE + _CONSUMER + "/assignments", 404),
    ("GET", f"{CLUSTER}/acls"): _get(CLUSTER + "/acls"),
    ("POST", f"{CLUSTER}/acls"): _admin(CLUSTER + "/acls", ("several", _acls(2))),
    ("POST", f"{CLUSTER}/acls:batch"): _admin(CLUSTER + "/acls:batch", ("many", _acls(1_000)), ("more", _acls(5_000))),
    ("DELETE", f"{CLUSTER}/acls"): _get(
        CLUSTER + "/acls?resource_type=TOPIC&resource_name=walked&pattern_type=LITERAL&operation=ANY&permission=ANY", *ANY
    ),
    ("GET", TOPIC): _get(_TOPIC),
    ("PATCH", TOPIC): _admin(_TOPIC, ("fewer", lambda: b'{"partitions_count":1}')),
    ("DELETE", TOPIC): lambda on: iter((Sent("absent", f"/v3/clusters/{on.cluster_id}/topics/absent", None, {}, ANY),)),
    ("GET", f"{TOPIC}/configs"): _get(_TOPIC + "/configs"),
    ("GET", f"{TOPIC}/configs/{{name}}"): _get(_TOPIC + "/configs/retention.ms"),
    ("PUT", f"{TOPIC}/configs/{{name}}"): _admin(
        _TOPIC + "/configs/retention.ms", ("a value", lambda: b'{"value":"-1"}'),
        ("a long value", _fill(b"9", ADMIN_BODY_BYTES_MAX, b'{"value":"', b'"}')),
    ),
    ("DELETE", f"{TOPIC}/configs/{{name}}"): _get(_TOPIC + "/configs/retention.ms", *ANY),
    ("POST", f"{TOPIC}/configs:alter"): _admin(
        _TOPIC + "/configs:alter", ("changes", _configs(1_000)), ("more changes", _configs(20_000)),
        ("wrong member", _configs(20_000, "x"))
    ),
    ("GET", f"{TOPIC}/partitions"): _get(_TOPIC + "/partitions"),
    ("GET", f"{TOPIC}/partitions/{{partition_id}}"): _get(_TOPIC + "/partitions/{partition}"),
    ("GET", f"{TOPIC}/partitions/{{partition_id}}/replicas"): _get(_TOPIC + "/partitions/{partition}/replicas"),
    ("GET", f"{TOPIC}/partitions/{{partition_id}}/replicas/{{broker_id}}"): _get(
        _TOPIC + "/partitions/{partition}/replicas/{broker}", 200, 404
    ),
    ("GET", f"{TOPIC}/partitions/{{partition_id}}/records"): _reads,
    ("POST", f"{TOPIC}/records"): _records,
    ("POST", f"{TOPIC}/records:batch"): _batches,
    # The broker ends by it.
    ("POST", "/v1/drain"): lambda on: iter((Sent("as it is", "/v1/drain?x=" + "x" * 40_000, None, {}, ANY),)),
}  # fmt: skip


class HttpServer(NamedTuple):
    """The application behind its own server."""

    port: int

    def ask(self, method: str, sent: Sent) -> tuple[int, bytes]:
        """A request, answered. Returns: status and body; 0 if the connection was closed before an answer."""
        body = None if sent.body is None else sent.body()
        if sent.token_of:
            _, page = self.ask("GET", Sent("the page of a form", sent.token_of, headers={"Accept": "text/html"}))
            token = page.partition(b'name="form_token" value="')[2][:64]
            assert len(token) == 64, page
            body = b"form_token=" + token + (body or b"")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=RESPONSE_WAIT_S)
        try:
            connection.request(method, sent.path, body, dict(sent.headers))
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (ConnectionError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()


@asynccontextmanager
async def http_server(
    bootstrap: tuple[str, int], *, change: Callable[[FastAPI], object] | None = None, **settings: Any
) -> AsyncIterator[HttpServer]:
    """The HTTP application on uvicorn, in the running loop; ``change`` may alter it before it starts."""
    made = HttpSettings(bootstrap=(bootstrap,), **settings)
    registry = Registry()
    app = create_app(made, clock=SystemClock(), rng=random.Random(1), registry=registry)
    if change is not None:
        change(app)
    limits = ConnectionLimits(
        connections_max=100, header_timeout_ms=made.header_timeout_ms, transfer_timeout_ms=made.body_idle_timeout_ms
    )
    protocol: Any = connection_class(OpenConnections(limits, registry, quick=app.state.quick_records))
    config = uvicorn.Config(app, http=protocol, ws="none", log_config=None, log_level="error", access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            while not server.started:
                assert not serving.done(), serving
                await asyncio.sleep(0)
            yield HttpServer(listening.getsockname()[1])
        finally:
            server.should_exit = True
            await serving
