"""Requests between brokers: fields that an older broker does not send, and ranges that cannot be read."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import ErrorCode, ProtocolError
from app.metadata.image.wal_ranges import WalRange
from app.metadata.peers.control import (
    ANYBODY,
    ENVELOPE_SEQUENCE,
    ChangeResponse,
    EntriesRequest,
    EntriesResponse,
    Heartbeat,
    HeartbeatAnswer,
    HoldResponse,
    LookRequest,
    LookResponse,
    ManifestInfo,
    ManifestsRequest,
    ManifestsResponse,
    PulseRequest,
    PulseResponse,
    RegisterRequest,
    RegisterResponse,
    ReleaseAsked,
    decode_ranges,
    encode_ranges,
)
from app.wire.private import unpack

ID = UUID(int=5)
RANGES = (WalRange(1, 7, 3, 0, 41), WalRange(2, 8, 4, 42, 1 << 40))


@pytest.mark.parametrize(
    ("kind", "sent", "assumed"),
    [
        (
            RegisterRequest,
            ["c", 1, ID, ID, -1, -1, -1, "", "", [], None, "", 0, 3],
            {"force": False, "anew": -1, "ephemeral": False, "wal_store": ""},
        ),
        (RegisterResponse, [], {"error": 0, "message": "", "broker_id": -1, "broker_epoch": -1, "sequence": -1}),
        (PulseRequest, ["c", 1, 2, True, 5], {"controller_epoch": -1, "confirmed_ms": -1}),
        (PulseResponse, [], {"error": 0}),
        (EntriesRequest, ["c", 7, 100], {"broker_id": -1, "now_ms": -1}),
        (EntriesResponse, [], {"error": 0, "entries": (), "lost": False}),
        (LookRequest, ["c", 7], {"producers": (), "doubts": ()}),
        (LookResponse, [], {"error_code": 0, "led": (), "opened": (), "known": (), "outcomes": (), "marked": ()}),
        (HoldResponse, [], {"error": 0, "message": "", "segments": 0}),
        (ManifestsRequest, ["c", 1, "term", 3, 100], {"asked": ()}),
        (ManifestInfo, [ID, 0, 4], {"entries": ()}),
        (ManifestsResponse, [], {"error": 0, "term": "", "place": 0, "lost": False, "entries": (), "given": ()}),
        (ChangeResponse, [], {"error": 0, "message": "", "sequence": -1, "body": b""}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_message_without_its_later_fields_has_their_defaults(
    kind: type[msgspec.Struct], sent: list[object], assumed: dict[str, object]
) -> None:
    message = unpack(kind, msgspec.msgpack.encode(sent))
    assert {name: getattr(message, name) for name in assumed} == assumed
    assert len(sent) + len(assumed) == len(kind.__struct_fields__)


def test_a_heartbeat_says_by_default_that_all_of_the_log_may_have_begun() -> None:
    assert Heartbeat(1, 2, 3, wants_stop=False).wal_next == 0
    assert HeartbeatAnswer() == (ErrorCode.NONE, False, True, False)


def test_a_partition_is_released_to_any_broker_by_default() -> None:
    assert ReleaseAsked(ID, 0, 1, 2, 3).to == ANYBODY
    assert ANYBODY < 0, "no broker has this id"


def test_the_number_before_an_answer_has_eight_bytes() -> None:
    assert ENVELOPE_SEQUENCE.pack(258) == bytes(6) + b"\x01\x02"


@given(st.integers(0, len(RANGES)))
def test_ranges_come_back(count: int) -> None:
    assert decode_ranges(encode_ranges(RANGES[:count])) == RANGES[:count]


@given(st.binary(max_size=40))
def test_ranges_that_cannot_be_read_are_an_error_of_the_protocol(data: bytes) -> None:
    try:
        found = decode_ranges(data)
    except ProtocolError:
        return
    assert decode_ranges(encode_ranges(found)) == found


def test_cut_ranges_are_refused() -> None:
    whole = encode_ranges(RANGES)
    for length in range(len(whole)):
        with pytest.raises(ProtocolError):
            decode_ranges(whole[:length])
