"""Command lines that read or produce a message, to copy into a shell. Pure.

Each name is quoted for a shell. A line is empty if a name would be taken for an option, or has an invisible character
(``formats.shell``). Templates add the address of a broker, and the file with the login (``reaching``). JSON is written in ASCII, so
all of its characters show.

Tests: ``tests/http/console/test_command_lines.py``.
"""

from __future__ import annotations

import binascii
import json
import re
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from app.core.limits import KIB
from app.http.console.texts.formats import shell
from app.records.record import Record

_ZONED: Final = re.compile(r"T.*[+-]\d\d:?\d\d$")
"""A time with its distance from UTC."""
PRODUCED_BYTES_MAX: Final = 4 * KIB
"""Of a message that a line produces."""
PRODUCED_HEADERS_MAX: Final = 20


CLIENT_CONFIG: Final = "client.properties"
"""A file of the reader with the login, and with the certificates, in the names of Kafka's tools. No line has a secret."""
KCAT_CONFIG: Final = "kcat.conf"
"""The same for kcat, in the names of librdkafka, which does not know `sasl.jaas.config`."""
ANY_BROKER: Final = "HOST:PORT"
"""Stands in a form for the address of a broker."""
_DEFAULT: Final = frozenset({("127.0.0.1", 9092), ("localhost", 9092)})
"""Addresses that `firn` asks without an option."""
_OF_FIRN: Final = ("firn ", "echo hello | firn ")
_WITHOUT_BROKERS: Final = ("firn drain", "firn verify")
"""Commands that ask one certain broker, or the store."""


class Line(NamedTuple):
    """A command line."""

    name: str
    command: str


class Reach(NamedTuple):
    """How a reader's commands reach the cluster."""

    host: str = ""
    """Of a broker, as it is told to clients; empty if none is known."""
    port: int = 0
    secured: bool = False
    """Whether brokers want TLS, a login or both."""

    @property
    def address(self) -> str:
        """HOST:PORT, with brackets around an IPv6 address; empty if no broker is known."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if host else ""


def reaching(command: str, reach: Reach) -> str:
    """A command with the options that it needs to reach the cluster. Commands of other kinds stay as they are."""
    if command in _WITHOUT_BROKERS:
        return command
    for before in _OF_FIRN:
        if command.startswith(before):
            login = f"--client-config {CLIENT_CONFIG} " if reach.secured else ""
            elsewhere = reach.host and (reach.host, reach.port) not in _DEFAULT
            return before + login + command[len(before) :] + (shell(" -b {}", reach.address) if elsewhere else "")
    tool, named, rest = command.partition(f" --bootstrap-server {ANY_BROKER}")
    if not named or not (address := shell(" --bootstrap-server {}", reach.address)) or not reach.host:
        return command
    login = f" --command-config {CLIENT_CONFIG}" if reach.secured else ""
    return tool + address + login + rest


def reading(
    topic: str, partition: int, offset: int, *, base: str, cluster_id: str, reach: Reach, user: str
) -> list[Line]:
    """Lines that read a message. ``base``: the URL of HTTP. ``user``: the name of the logged-in user."""
    login = f" -F {KCAT_CONFIG}" if reach.secured else ""
    url = f"{_records(base, cluster_id, topic, partition)}?offset={offset}&count=1"  # a shell would take & for its own
    return [
        Line("firn", shell(f"firn consume {{}} --partition {partition} --from {offset} --count 1", topic)),
        Line("kcat", shell(f"kcat{login} -b {{}} -C -t {{}} -p {partition} -o {offset} -c 1", reach.address, topic)),
        Line("curl", _curl(user, "{}", url)),
    ]


def producing(topic: str, partition: int, record: Record, *, base: str, cluster_id: str, user: str) -> Line:
    """A line that produces the same message again. Its command is empty if the message is long."""
    if len(record.headers) > PRODUCED_HEADERS_MAX:
        return Line("Produce", "")
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    if len(record.key or b"") + len(record.value or b"") + headers > PRODUCED_BYTES_MAX:
        return Line("Produce", "")
    body: dict[str, Any] = {"partition_id": partition}
    for name, data in (("key", record.key), ("value", record.value)):
        if data is not None:
            body[name] = _part(data)
    if record.headers:
        body["headers"] = [{"name": name, "value": _base64(value)} for name, value in record.headers]
    if record.timestamp >= 0:
        body["timestamp"] = record.timestamp
    form = "-H 'Content-Type: application/json' --data {} {}"
    return Line("Produce", _curl(user, form, json.dumps(body), _records(base, cluster_id, topic)))


def _curl(user: str, form: str, *names: str) -> str:
    return shell(f"curl -s -u {{}} {form}", user, *names) if user else shell(f"curl -s {form}", *names)


def _records(base: str, cluster_id: str, topic: str, partition: int | None = None) -> str:
    of = "" if partition is None else f"/partitions/{partition}"
    return f"{base.rstrip('/')}/v3/clusters/{quote(cluster_id, safe='')}/topics/{quote(topic, safe='')}{of}/records"


def _part(data: bytes) -> dict[str, str]:
    try:
        return {"type": "STRING", "data": data.decode()}
    except UnicodeDecodeError:
        return {"type": "BINARY", "data": _base64(data) or ""}


def _base64(data: bytes | None) -> str | None:
    return None if data is None else binascii.b2a_base64(data, newline=False).decode()


def reset_line(group: str, *, topic: str, partition: str, to: str, at: str) -> str:
    """The line that previews the reset of a form: of all topics without a ``topic``, to ``earliest`` without a place ``to``.

    Empty if a name cannot be shown.
    """
    where = at if to in ("time", "offset") else to or "earliest"
    if to == "time" and "T" in at and at[-1:].isdigit() and not _ZONED.search(at):
        where += "Z"  # times of forms are in UTC
    if not topic:
        return shell("firn group reset {} --all-topics --to {}", group, where)
    return shell("firn group reset {} --topic {} --to {}", group, f"{topic}:{partition}" if partition else topic, where)
