"""Every message of the protocol, to encode and decode."""

from __future__ import annotations

from typing import Any

from app.wire import codec
from app.wire.apis import APIS
from tests.wire.reference import Subject

MESSAGES = [(key, is_request) for key in APIS for is_request in (True, False)]
MESSAGE_IDS = [f"{APIS[key].module}-{'request' if is_request else 'response'}" for key, is_request in MESSAGES]


def encode(subject: Subject, message: object) -> bytes:
    write = codec.encode_request if subject.is_request else codec.encode_response
    return write(subject.key, subject.version, message)


def decode(subject: Subject, data: bytes) -> Any:
    read = codec.decode_request if subject.is_request else codec.decode_response
    return read(subject.key, subject.version, memoryview(data))
