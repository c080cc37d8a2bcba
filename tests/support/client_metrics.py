"""Metrics as clients push them (KIP-714): OpenTelemetry's ``MetricsData``, written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import pack
from typing import NamedTuple


class Pushed(NamedTuple):
    """One time series of a client."""

    name: str
    value: float
    attributes: Mapping[str, str | int | bool | float] = {}
    is_sum: bool = False
    is_delta: bool = False


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def part(number: int, body: bytes) -> bytes:
    """A field with a length."""
    return varint(number << 3 | 2) + varint(len(body)) + body


def attribute(name: str, value: str | int | bool | float) -> bytes:
    match value:
        case bool():
            told = varint(2 << 3) + varint(int(value))
        case int():
            told = varint(3 << 3) + varint(value & (1 << 64) - 1)
        case float():
            told = varint(4 << 3 | 1) + pack("<d", value)
        case _:
            told = part(1, value.encode())
    return part(1, name.encode()) + part(2, told)


def metric(pushed: Pushed) -> bytes:
    value = pushed.value
    number = (
        varint(6 << 3 | 1) + pack("<q", value) if isinstance(value, int) else varint(4 << 3 | 1) + pack("<d", value)
    )
    times = varint(2 << 3 | 1) + pack("<Q", 1_700_000_000) + varint(3 << 3 | 1) + pack("<Q", 1_700_000_060)
    point = times + number + b"".join(part(7, attribute(*one)) for one in pushed.attributes.items())
    data = part(1, point)
    if pushed.is_sum:
        data += varint(2 << 3) + varint(1 if pushed.is_delta else 2) + varint(3 << 3) + varint(1)
    return part(1, pushed.name.encode()) + part(7 if pushed.is_sum else 5, data)


def metrics_data(series: Sequence[Pushed], of_client: Mapping[str, str | int | bool | float] | None = None) -> bytes:
    """The bytes of a push. ``of_client``: attributes of all series."""
    resource = b"".join(part(1, attribute(*one)) for one in (of_client or {}).items())
    scope = part(1, part(1, b"scope")) + b"".join(part(2, metric(one)) for one in series)
    return part(1, part(1, resource) + part(2, scope))


def metrics_of(count: int) -> bytes:
    """A push of so many time series, all different."""
    return metrics_data(
        [Pushed("org.apache.kafka.producer.record.send.rate", 1.5, {"topic": f"t-{n}"}) for n in range(count)]
    )
