"""Private APIs that write for a client, and are served through a slot of its connection: FirnAppend and FirnKeyed.

Tests: ``tests/broker/test_conditional_appends.py``, ``tests/broker/test_keyed_tries.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from app.core.errors import ErrorCode, ProtocolError
from app.handlers.clients.client import RequestFields
from app.handlers.clients.serving import PRODUCE, request_of
from app.handlers.state.metrics import PRIVATE_NAMES
from app.wire.codec import decode_request
from app.wire.framing import response_frame
from app.wire.header import parse_request_header
from app.wire.private import pack, unpack

if TYPE_CHECKING:
    from app.handlers.base.request import Request
    from app.handlers.clients.client import Client
    from app.transport.core import Slot

A = TypeVar("A", bound=msgspec.Struct)


def read_private(
    connection: Client, api_key: int, version: int, correlation_id: int, frame: memoryview, form: type[A]
) -> tuple[Request, A]:
    """The request of a frame. Its bytes count for the quota of produced bytes.

    Raises: ProtocolError for a frame that is none of ``form``, or of a version that is not served.
    """
    if version != 0:
        raise ProtocolError(
            f"Version {version} of {PRIVATE_NAMES[api_key]} is not served.", ErrorCode.UNSUPPORTED_VERSION
        )
    header = parse_request_header(frame)
    asked = unpack(form, decode_request(api_key, version, frame[header.body_start :]))
    fields = RequestFields(version, correlation_id, connection.charge(header.client_id, PRODUCE, len(frame)))
    return request_of(connection, fields, api_key, header.client_id), asked


async def answer_private(
    connection: Client, slot: Slot, request: Request, kept_bytes: int, answer: Callable[[], Awaitable[Any]]
) -> None:
    """Make a response by ``answer``, and send it through its slot. ``kept_bytes``: were kept for the request, and are given back.

    A ProtocolError of ``answer`` ends the connection.
    """
    try:
        response = await answer()
    except ProtocolError as error:
        connection.fail(f"closing the connection of {connection.peer}: {error}")
        return
    finally:
        connection.server.unreserve(kept_bytes)
    audit = connection.context.audit
    if request.denied and audit is not None:
        audit.refused(request.caller, request.api_key, request.client_id, request.correlation_id, request.denied)
    connection.complete(slot, response_frame(request.api_key, 0, request.correlation_id, pack(response)))
