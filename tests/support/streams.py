"""Byte streams that begin as real conversations and go wrong: what clients of every kind send, mutated, replayed from a seed.

A stream is a generator of what its client sends. It is sent back the last answer: so a login by SCRAM goes as far as its proof.
``End`` is the client's end of a connection, with TLS or without. ``Answers`` holds what comes back against what was asked: each
answer belongs to a request, in order, and its schema reads it.
"""

from __future__ import annotations

import json
import random
import ssl
import struct
from base64 import b64encode
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from app.security.sasl import Refused, plain_message
from app.security.scram import ScramClient, ScramMechanism
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.apis.sasl_authenticate import SaslAuthenticateRequest
from app.wire.apis.sasl_handshake import SaslHandshakeRequest
from app.wire.codec import decode_request, decode_response
from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from app.wire.framing import request_frame
from app.wire.header import encode_request_header, parse_request_header, parse_response_header
from app.wire.negotiation import is_api_versions_known
from app.wire.produce import encode_produce_request
from app.wire.versions import BETWEEN_BROKERS, OPAQUE, PRIVATE, SERVED
from tests.handlers.conversation import batch
from tests.support.rights import OTHER, SEEN, STEPS, Ids
from tests.wire import reference
from tests.wire.reference import Subject

GOLDEN: Final = Path(__file__).parents[1] / "wire" / "golden" / "requests.json"
SIZE: Final = struct.Struct(">i")
HEAD: Final = struct.Struct(">hhi")
REQUEST_BYTES_MAX: Final = 100 << 20
CLIENT_ID: Final = "mutated"
NUMBERS: Final = (
    -(2**31), -2, -1, 0, 1, 9, 10, 65_535, 65_536, 524_288, 524_289, 0x00FF_FFFF, 100 << 20, (100 << 20) + 1, 2**31 - 1,
)  # fmt: skip
"""Sizes, counts and codes that something may be wrong about."""
VARINTS: Final = (
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 9 + b"\x01",
    b"\x80" * 12,
    b"\x80\x80\x80\x80\x10",
    b"\xff\xff\xff\x07",
)
BYTES: Final = (0x00, 0x01, 0x7F, 0x80, 0xFF)

Stream = Generator[bytes, Any, None]


class Frame(NamedTuple):
    """A whole request, and where its counts and lengths are, if that is known."""

    data: bytes
    spots: tuple[tuple[int, int], ...] = ()
    """(position, size) of each."""


# --- what is sound --------------------------------------------------------------------------------------------------


def framed(content: bytes) -> bytes:
    return SIZE.pack(len(content)) + content


def corpus(ids: Ids) -> list[Frame]:
    """Requests of every API in every version, as tests and real clients make them, about topics that there are."""
    frames = []
    for step in STEPS:
        if step.key in (ApiKey.PRODUCE, ApiKey.FETCH):
            continue
        for version in step.versions():
            frames.append(Frame(request_frame(step.key, version, 7, CLIENT_ID, step.build(version, ids))))
    first, last = SERVED[ApiKey.PRODUCE]
    for version in range(first, last + 1):
        for acks in (-1, 0, 1):
            topics: Any = [
                (ids[name] if version >= 13 else name, [(0, batch(3))]) for name in (SEEN, OTHER)[: 2 + acks]
            ]
            pieces = encode_produce_request(version, 7, CLIENT_ID, topics, acks=acks, timeout_ms=50)
            frames.append(Frame(b"".join(bytes(piece) for piece in pieces)))
    first, last = SERVED[ApiKey.FETCH]
    for version in range(first, last + 1):
        for session in (-1, 0):
            topic: Any = ids[SEEN] if version >= 13 else SEEN
            wanted = FetchRequest(
                max_wait_ms=0, session_epoch=session, topics=[(topic, [FetchPartition(0, partition_max_bytes=2000)])]
            )
            frames.append(Frame(encode_fetch_request(version, 7, CLIENT_ID, wanted)))
    for key, (first, last) in {**SERVED, **BETWEEN_BROKERS}.items():
        for version in range(first, last + 1):
            if key in OPAQUE:
                continue
            subject = Subject(key, version, True)
            notes = reference.encode(subject, reference.make(subject, random.Random(version), full=True))
            header = encode_request_header(key, version, 7, CLIENT_ID)
            spots = tuple((4 + len(header) + spot.position, spot.size) for spot in notes.spots)
            frames.append(Frame(framed(header + notes.data), spots))
    frames += [
        Frame(framed(encode_request_header(key, 0, 7, CLIENT_ID) + b"\x05\x91\xa1tx"))
        for key in sorted({*PRIVATE, *OPAQUE})
    ]
    frames += [
        Frame(bytes.fromhex(hexed))
        for captured in json.loads(GOLDEN.read_text()).values()
        for hexed in captured.values()
    ]
    return frames


@dataclass(frozen=True)
class Credential:
    """One way to log in."""

    mechanism: str
    user: str = ""
    secret: str = ""
    """A password, or a whole signed token."""
    by_token: bool = False
    """With a delegation token."""
    principal: str = ""
    """Who logs in with it; empty if nobody can."""


HELLO: Final = request_frame(ApiKey.API_VERSIONS, 3, 1, CLIENT_ID, ApiVersionsRequest("mutated", "1"))


def login(credential: Credential, rng: random.Random) -> Stream:
    """A whole login, as a client sends it."""
    if rng.random() < 0.5:
        yield HELLO
    version = rng.choice((0, 1, 1))
    yield request_frame(ApiKey.SASL_HANDSHAKE, version, 2, CLIENT_ID, SaslHandshakeRequest(credential.mechanism))
    message_version = rng.randrange(3)

    def said(message: bytes) -> bytes:
        if version == 0:
            return framed(message)
        return request_frame(ApiKey.SASL_AUTHENTICATE, message_version, 3, CLIENT_ID, SaslAuthenticateRequest(message))

    if credential.mechanism == "PLAIN":
        yield said(plain_message(credential.user, credential.secret))
    elif credential.mechanism == "OAUTHBEARER":
        answer = yield said(b"n,,\x01auth=Bearer " + credential.secret.encode() + b"\x01\x01")
        if _token_of(answer):
            yield said(b"\x01")
    else:
        kind = ScramMechanism.of(credential.mechanism)
        nonce = b64encode(rng.randbytes(18)).decode()
        client = ScramClient(kind, credential.user, credential.secret, nonce=nonce, token=credential.by_token)
        answer = yield said(client.first)
        try:
            last = client.answer(_token_of(answer))
        except Refused:
            last = b"c=biws,r=" + nonce.encode() + b"x,p=" + b64encode(rng.randbytes(kind.key_bytes))
        yield said(last)


def _token_of(answer: Any) -> bytes:
    """What a mechanism says in an answer."""
    return bytes(answer) if isinstance(answer, bytes) else bytes(getattr(answer, "auth_bytes", b""))


# --- what is not ----------------------------------------------------------------------------------------------------


def mutate(data: bytearray, spots: Sequence[tuple[int, int]], others: Sequence[Frame], rng: random.Random) -> None:
    """One thing goes wrong."""
    if not data:
        data += rng.randbytes(4)
    at = rng.randrange(len(data))
    match rng.randrange(14):
        case 0 | 1 | 2:
            for _ in range(rng.choice((1, 1, 2, 8))):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 3:
            data[at] = rng.choice(BYTES)
        case 4:  # the size of the frame
            data[:4] = SIZE.pack(rng.choice((*NUMBERS, len(data) - 3, len(data) - 5, len(data) + rng.randrange(99))))
        case 5 if len(data) >= 14:  # key, version, correlation id, length of the client id
            place = rng.choice((4, 6, 8, 12))
            data[place : place + 2] = rng.choice(
                (b"\xff\xff", b"\x7f\xff", b"\x80\0", b"\0\0", bytes([0, rng.randrange(99)]))
            )
        case 6 | 7:  # a count or a length
            place, size = rng.choice(spots) if spots else (at, 4)
            if size == 4:
                data[place : place + size] = SIZE.pack(rng.choice(NUMBERS))
            elif size == 2:
                data[place : place + size] = struct.pack(">h", rng.choice((-1, -2, 0, 1, 0x7FFF, -0x8000)))
            else:
                data[place : place + size] = rng.choice(VARINTS)
        case 8:
            data[at:at] = rng.choice(VARINTS)
        case 9:
            del data[at:]
        case 10:
            del data[at : at + rng.randint(1, 8)]
        case 11:
            data[at:at] = data[at : at + rng.randint(1, 64)] * rng.choice((1, 1, 2, 50))
        case 12:
            data[at:] = rng.choice(others).data[at:] if others else rng.randbytes(rng.randrange(200))
        case _:
            data[at:at] = rng.randbytes(rng.randint(1, 40))


def mutated(frame: Frame, others: Sequence[Frame], rng: random.Random) -> bytes:
    """The frame with something wrong in it; mostly with a size that fits, so that more than the size is looked at."""
    data = bytearray(frame.data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        mutate(data, frame.spots, others, rng)
    if len(data) > 4 and rng.random() < 0.75:
        data[:4] = SIZE.pack(len(data) - 4)
    return bytes(data)


def shuffled(parts: list[bytes], rng: random.Random) -> list[bytes]:
    """Frames in another order, twice, not at all, cut off, or with something between them."""
    if not parts:
        return parts
    at = rng.randrange(len(parts))
    match rng.randrange(8):
        case 0:
            parts.insert(at, parts[at])
        case 1:
            del parts[at]
        case 2:
            rng.shuffle(parts)
        case 3:
            parts[at] = parts[at][: rng.randrange(len(parts[at]) + 1)]
        case 4:
            parts.insert(at, rng.randbytes(rng.randrange(60)))
        case 5:
            other = parts[rng.randrange(len(parts))]
            parts[at] = parts[at][: rng.randrange(len(parts[at]) + 1)] + other[rng.randrange(len(other) + 1) :]
        case _:
            pass
    return parts


def before(
    credential: Credential | None, frames: Sequence[Frame], logins: Sequence[Frame], rng: random.Random
) -> Stream:
    """A client that is not known: something is wrong with its login, or it asks for what it may not, or both."""
    if credential is None or rng.random() < 0.2:
        yield from after(frames, rng)
        return
    wrong = {rng.randrange(4) for _ in range(rng.choice((0, 1, 1, 2)))}
    if credential.principal and not wrong:
        wrong = {rng.randrange(3)}
    asked = login(credential, rng)
    answer, number = None, 0
    while True:
        try:
            data = asked.send(answer)
        except StopIteration:
            break
        parts = [mutated(Frame(data), logins, rng) if number in wrong else data]
        if rng.random() < 0.15:
            parts.append(rng.choice(frames).data)
            parts = shuffled(parts, rng)
        answer = yield b"".join(parts)
        number += 1
    yield from after(frames, rng)


def after(frames: Sequence[Frame], rng: random.Random) -> Stream:
    """Requests with something wrong in most of them."""
    parts = []
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        frame = rng.choice(frames)
        parts.append(mutated(frame, frames, rng) if rng.random() < 0.8 else frame.data)
    if len(parts) > 1:
        parts = shuffled(parts, rng)
    if rng.random() < 0.7:
        parts = [b"".join(parts)]
    yield from (part for part in parts)  # whatever comes back


# --- the client's end -----------------------------------------------------------------------------------------------


class Broken(Exception):
    """The client cannot go on: what it was sent ends its side of TLS."""


class End:
    """What a client does to bytes on their way, without the way."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.plain = bytearray()
        """What the server has said."""
        self._tls: ssl.SSLObject | None = None
        self.shaken = context is None
        if context is not None:
            self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")

    def opening(self) -> bytes:
        """What is sent before anything comes."""
        return self.take(b"") if self._tls is not None else b""

    def take(self, data: bytes) -> bytes:
        """Bytes have come. Returns: what is to be sent at once. Raises: Broken."""
        if self._tls is None:
            self.plain += data
            return b""
        self._in.write(data)
        try:
            if not self.shaken:
                self._tls.do_handshake()
                self.shaken = True
            while got := self._tls.read(65_536):
                self.plain += got
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise Broken(str(error)) from None
        return self._out.read()

    def seal(self, data: bytes) -> bytes:
        """What goes out for ``data``. Raises: Broken."""
        if self._tls is None or not data:
            return data
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise Broken(str(error)) from None
        return self._out.read()


def spoiled(data: bytes, rng: random.Random) -> bytes:
    """Bytes of TLS with something wrong in them."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        mutate(changed, ((3, 2), (0, 2)), (), rng)
    return bytes(changed)


TOKENS_OF: Final = {"PLAIN": 1, "OAUTHBEARER": 1}
"""Answers to messages without a header until a login is done; two of SCRAM."""


@dataclass
class Answers:
    """Holds answers against requests. What was sent is read as the broker has to read it: one frame after the other."""

    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)
    count: int = 0
    last: Any = None
    told: list[str] = field(default_factory=list)
    """What was answered, for a failure's message."""
    _opaque: int = 0
    """Answers without a header that are to come."""

    def take(self, data: bytes | bytearray) -> None:
        """The broker has said so much. Raises: AssertionError, ProtocolError."""
        self.received += data
        while len(self.received) >= 4:
            (size,) = SIZE.unpack_from(self.received)
            assert 0 <= size <= REQUEST_BYTES_MAX, size
            if len(self.received) < 4 + size:
                return
            answer = bytes(self.received[4 : 4 + size])
            del self.received[: 4 + size]
            self.count += 1
            self.told.append(f"answer {answer[:40].hex()}")
            self._take(answer)

    def _take(self, answer: bytes) -> None:
        if self._opaque:
            self._next_frame(1)
            self._opaque -= not answer.startswith(b"{")
            self.last = answer
            return
        while True:
            frame = self._next_frame(10)
            key, version, correlation_id = HEAD.unpack_from(frame)
            if key == ApiKey.PRODUCE and _wants_no_answer(frame):
                continue
            break
        if key == ApiKey.API_VERSIONS and not is_api_versions_known(version):
            version = 0
        view = memoryview(answer)
        header = parse_response_header(view, key, version)
        assert header.correlation_id == correlation_id, (key, version, header.correlation_id, correlation_id)
        self.last = decode_response(key, version, view[header.body_start :])
        if key == ApiKey.SASL_HANDSHAKE and version == 0 and not self.last.error_code:
            body = frame[parse_request_header(frame).body_start :]
            self._opaque = TOKENS_OF.get(decode_request(key, version, body).mechanism, 2)

    def _next_frame(self, least: int) -> bytes:
        """The next request that is not answered yet."""
        assert len(self.sent) >= 4, "an answer to nothing"
        (size,) = SIZE.unpack_from(self.sent)
        assert least <= size <= len(self.sent) - 4, f"an answer to a request of {size} bytes"
        frame = bytes(self.sent[4 : 4 + size])
        del self.sent[: 4 + size]
        self.told.append(f"asked {frame[:80].hex()}")
        return frame

    def history(self) -> str:
        """All that was read so far, in the order in which it was."""
        return f"{', '.join(self.told)}, and then {bytes(self.sent[:200]).hex()}"


def _wants_no_answer(frame: bytes) -> bool:
    header = parse_request_header(frame)
    message = decode_request(header.api_key, header.api_version, memoryview(frame)[header.body_start :])
    return bool(message.acks == 0)
