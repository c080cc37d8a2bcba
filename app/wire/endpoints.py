"""The new leader in an answer that says "not here" (KIP-951): Produce and Fetch say it alike.

Tests: ``tests/wire/test_fetch.py``, ``tests/wire/test_produce.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from app.wire.primitives import INT32, put_compact_string, uvarint


class NodeEndpoint(NamedTuple):
    """Where a leader that the answer names can be reached."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


LEADER: Final = Struct(">BBiix")
"""A tagged field of 9 bytes: tag, size, leader id, leader epoch, no tagged fields."""
LEADER_BYTES: Final = 9


def put_node_endpoints(parts: list[bytes], node_endpoints: Sequence[NodeEndpoint]) -> None:
    """Add the last section of a response to ``parts``: tagged field 0, the endpoints, if there are any."""
    if not node_endpoints:
        parts.append(b"\0")
        return
    body = [uvarint(len(node_endpoints) + 1)]
    for node in node_endpoints:
        body.append(INT32.pack(node.node_id))
        put_compact_string(body, node.host)
        body.append(INT32.pack(node.port))
        put_compact_string(body, node.rack)
        body.append(b"\0")
    joined = b"".join(body)
    parts.append(b"\x01\x00" + uvarint(len(joined)) + joined)
