"""The link between a socket and a connection: bytes in and out of TLS, without a network."""

from __future__ import annotations

import _ssl
import asyncio
import ctypes
import os
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.transport.arrivals import Arrivals
from app.transport.tls import RECORDS_PER_TURN, SCRATCH_BYTES, TlsLink, scratch
from tests.support.cpu import TURN_MS_MAX, cpu_ms
from tests.support.secured import certificates


class Raw:
    """The loop's transport."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.aborted = False
        self.reads = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.sent += data

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None:
        self.aborted = True


class Taker:
    """A connection that takes so many bytes at a time, and has enough for now after each ``rests_after`` of them."""

    def __init__(self, buffer_bytes: int, rests_after: int = 0) -> None:
        self.buffer = memoryview(bytearray(buffer_bytes))
        self.taken = bytearray()
        self.calls = 0
        self.rests_after = rests_after
        self.transport: Any = None
        self.rests = False
        self.ends = 0
        """How often it was told of its end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: BaseException | None) -> None:
        self.ends += 1

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert not self.rests
        self.calls += 1
        before = len(self.taken)
        self.taken += self.buffer[:nbytes]
        if self.rests_after and before // self.rests_after != len(self.taken) // self.rests_after:
            self.rests = True
            self.transport.pause_reading()

    def go_on(self) -> None:
        self.rests = False
        self.transport.resume_reading()

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class Server:
    def __init__(self) -> None:
        self.arrivals = Arrivals(arrivals_max=10, timeout_ms=60_000)
        self.tls_scratch = scratch()
        self.broken: list[str] = []

    def admit(self, connection: Taker, transport: asyncio.BaseTransport, ends: TlsLink[Any]) -> bool:
        return True

    def lost(self, connection: Taker) -> None: ...

    def handshake_failed(self, listener: str, host: str, why: str) -> None:
        raise AssertionError(why)

    def tls_broken(self, host: str, why: str) -> None:
        self.broken.append(why)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("tls") / "c")


class Conversation:
    """A client's TLS in memory, and a link that has shaken hands with it."""

    def __init__(self, folder: Path, taker: Taker) -> None:
        self.raw, self.taker, self.server = Raw(), taker, Server()
        self._theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._theirs.load_cert_chain(folder / "broker.pem")
        self._theirs.num_tickets = 0
        self.connect()
        self.received, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        own = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        self.client = own.wrap_bio(self.received, self.outgoing, server_hostname="localhost")
        while True:
            try:
                self.client.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.pass_on(self.outgoing.read())
                self.received.write(self.raw.sent)
                self.raw.sent.clear()
        self.pass_on(self.outgoing.read())

    def connect(self) -> None:
        """Begin anew, for another client."""
        self.link = TlsLink(self.server, self._theirs, self.taker, lambda _, arrival: arrival.over())
        self.link.connection_made(self.raw)  # type: ignore[arg-type]

    def encrypted(self, data: bytes) -> bytes:
        self.client.write(data)
        return self.outgoing.read()

    def pass_on(self, data: bytes) -> None:
        """Let the loop read it."""
        while data:
            room = self.link.get_buffer(-1)
            piece, data = data[: len(room)], data[len(room) :]
            room[: len(piece)] = piece
            self.link.buffer_updated(len(piece))


def cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@pytest.mark.parametrize("rests_after", [0, 5_000, 40_000])
@pytest.mark.parametrize("buffer_bytes", [100, 16_384, 16_385, 1 << 18])
@pytest.mark.parametrize("cut_bytes", [999, 16_406, 1 << 20])
async def test_every_byte_comes_in_order_however_the_stream_is_cut(
    folder: Path, cut_bytes: int, buffer_bytes: int, rests_after: int
) -> None:
    sent = os.urandom(150_000)
    taker = Taker(buffer_bytes, rests_after)
    conversation = Conversation(folder, taker)
    for piece in cut(conversation.encrypted(sent), cut_bytes):
        conversation.pass_on(piece)
        while taker.rests:  # the loop reads nothing meanwhile, and what is inside of OpenSSL must come by itself
            assert not conversation.raw.reads
            taker.go_on()
            await asyncio.sleep(0)
    assert bytes(taker.taken) == sent
    assert not conversation.raw.aborted


async def test_all_that_is_there_is_handed_over_in_one_call(folder: Path) -> None:
    taker = Taker(1 << 18)
    conversation = Conversation(folder, taker)
    sent = os.urandom(100_000)
    conversation.pass_on(conversation.encrypted(sent))
    assert taker.taken == sent
    assert taker.calls == 1


def small_records(conversation: Conversation, sent: bytes, size: int) -> bytes:
    return b"".join(conversation.encrypted(piece) for piece in cut(sent, size))


@pytest.mark.parametrize("rests_after", [0, 300])
@pytest.mark.parametrize("cut_bytes", [7, 5_000, 1 << 20])
async def test_of_many_small_records_each_turn_takes_a_part_in_order(
    folder: Path, cut_bytes: int, rests_after: int
) -> None:
    sent = os.urandom(2_000)
    taker = Taker(1 << 18, rests_after)
    conversation = Conversation(folder, taker)
    for piece in cut(small_records(conversation, sent, 1), cut_bytes):
        before = len(taker.taken)
        conversation.pass_on(piece)
        assert len(taker.taken) - before <= RECORDS_PER_TURN
        while not conversation.raw.reads:  # the loop reads nothing meanwhile
            before = len(taker.taken)
            if taker.rests:
                taker.go_on()
            await asyncio.sleep(0)
            assert len(taker.taken) - before <= RECORDS_PER_TURN
    assert bytes(taker.taken) == sent
    assert not conversation.raw.aborted


async def test_what_is_read_while_a_part_waits_comes_behind_it(folder: Path) -> None:
    sent = os.urandom(3 * RECORDS_PER_TURN)
    taker = Taker(1 << 18)
    conversation = Conversation(folder, taker)
    made = small_records(conversation, sent, 1)
    conversation.pass_on(made[: len(made) // 2])
    assert not conversation.raw.reads
    conversation.pass_on(made[len(made) // 2 :])
    while not conversation.raw.reads:
        await asyncio.sleep(0)
    assert bytes(taker.taken) == sent


async def test_the_clients_end_is_noticed_behind_its_last_bytes(folder: Path) -> None:
    taker = Taker(1 << 18)
    conversation = Conversation(folder, taker)
    last = conversation.encrypted(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        conversation.client.unwrap()
    conversation.pass_on(last + conversation.outgoing.read())
    assert taker.taken == b"last"
    assert conversation.raw.aborted


class Answering(Taker):
    """Answers what it takes, and ends behind ``last``."""

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        self.transport.write(b"answer")
        if self.taken.endswith(b"last"):
            self.transport.abort()


async def test_tls_that_breaks_is_told_once_even_behind_bytes_that_are_answered(folder: Path) -> None:
    taker = Answering(1 << 18)
    conversation = Conversation(folder, taker)
    conversation.pass_on(conversation.encrypted(b"asked") + b"no record of TLS")
    assert taker.taken == b"asked"
    assert conversation.server.broken == ["wrong version number"]
    assert conversation.raw.aborted


async def test_tls_that_breaks_behind_bytes_that_ended_the_connection_is_no_further_reason(folder: Path) -> None:
    conversation = Conversation(folder, Answering(1 << 18))
    conversation.pass_on(conversation.encrypted(b"last") + b"no record of TLS")
    assert conversation.server.broken == []
    assert conversation.raw.aborted


async def test_a_connection_whose_tls_breaks_ends_at_once_and_has_no_time_for_another_reason(folder: Path) -> None:
    taker = Taker(1 << 18)
    conversation = Conversation(folder, taker)
    conversation.pass_on(b"no record of TLS")
    assert conversation.server.broken == ["wrong version number"]
    assert taker.ends == 1
    conversation.link.resume_writing()
    conversation.link.connection_lost(None)  # as the loop says in its next turn
    assert taker.ends == 1


async def test_changes_of_keys_cost_no_turn_of_the_loop_more_than_it_may_take(folder: Path) -> None:
    """The worst that a client can send without a login: each record has 27 bytes, and asks for an answer."""
    conversation = Conversation(folder, Taker(1 << 18))
    changes = KeyChanges(folder, conversation)
    sent = changes.make(SCRATCH_BYTES)
    turns = [cpu_ms(lambda: conversation.pass_on(sent), rounds=1)]
    while not conversation.raw.reads:
        started_s = time.thread_time()
        await asyncio.sleep(0)
        turns.append((time.thread_time() - started_s) * 1000)
    assert max(turns) < TURN_MS_MAX
    changes.take(bytes(conversation.raw.sent))
    conversation.pass_on(changes.encrypted(b"still there"))
    assert conversation.taker.taken == b"still there"


class KeyChanges:
    """A client of OpenSSL itself, because Python's cannot change keys. It takes the place of the conversation's client."""

    def __init__(self, folder: Path, conversation: Conversation) -> None:
        library = ctypes.CDLL(_ssl.__file__)  # it is linked with OpenSSL, whose functions it so has
        self._ssl = library
        for name in ("SSL_CTX_new", "TLS_client_method", "SSL_new", "BIO_new", "BIO_s_mem"):
            getattr(library, name).restype = ctypes.c_void_p
        pointer = ctypes.c_void_p
        self._context = pointer(library.SSL_CTX_new(pointer(library.TLS_client_method())))
        self._client = pointer(library.SSL_new(self._context))
        self._in, self._out = (pointer(library.BIO_new(pointer(library.BIO_s_mem()))) for _ in range(2))
        library.SSL_set_bio(self._client, self._in, self._out)
        library.SSL_set_connect_state(self._client)
        conversation.connect()
        while library.SSL_do_handshake(self._client) != 1:
            conversation.pass_on(self._sent())
            self.take(bytes(conversation.raw.sent))
            conversation.raw.sent.clear()
        conversation.pass_on(self._sent())
        conversation.raw.sent.clear()

    def make(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size - 100:
            assert self._ssl.SSL_key_update(self._client, 1) == 1
            assert self._ssl.SSL_do_handshake(self._client) == 1
            found += self._sent()
        return bytes(found)

    def encrypted(self, data: bytes) -> bytes:
        assert self._ssl.SSL_write(self._client, data, len(data)) == len(data)
        return self._sent()

    def take(self, data: bytes) -> None:
        self._ssl.BIO_write(self._in, data, len(data))

    def _sent(self) -> bytes:
        buffer, found = ctypes.create_string_buffer(1 << 16), bytearray()
        while (count := self._ssl.BIO_read(self._out, buffer, len(buffer))) > 0:
            found += buffer.raw[:count]
        return bytes(found)
