"""Limits of connections, over real sockets: they hold before TLS and logins, and change while the broker runs."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from app.configs.listeners import ListenerConfig
from app.core.errors import RequestRejected
from app.core.limits import MIB
from app.metadata.changes.topic_changes import ConfigChange
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.config_resources import ConfigOperation, ConfigResourceType
from tests.handlers.conversation import Talk, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.changing import alter_configs
from tests.support.secured import certificates, listener, security
from tests.support.streams import End
from tests.support.waiting import until

HELLO: Final = ApiVersionsRequest("test", "1")
IN, OUT = ListenerConfig(name="IN", port=0), ListenerConfig(name="OUT", port=0)
TWO: Final[dict[str, Any]] = {"listeners": (IN, OUT), "inter_broker_listener": "IN"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("tls") / "c")


async def hello(client: Talk) -> bool:
    return (await client.ask(ApiKey.API_VERSIONS, 3, HELLO)).error_code == 0


async def is_cut(client: Talk) -> bool:
    """Whether the broker has closed a connection, or closes it now, without an answer."""
    async with asyncio.timeout(60):
        try:
            client.send(ApiKey.API_VERSIONS, 3, HELLO)
            return not await client.reader.read()
        except ConnectionError:
            return True


@asynccontextmanager
async def clients(broker: RunningBroker) -> AsyncIterator[Callable[[str], Awaitable[Talk]]]:
    """``await connect("IN")`` is a client of that listener."""
    async with AsyncExitStack() as stack:

        async def connect(name: str) -> Talk:
            return await stack.enter_async_context(talk(broker.node.ports[name]))

        yield connect


async def alter(broker: RunningBroker, name: str, value: int | str, node: str = "") -> None:
    change = ConfigChange(name, ConfigOperation.SET, str(value))
    await alter_configs(broker.node.membership.controller, ConfigResourceType.BROKER, node, [change])


def counter(broker: RunningBroker, name: str, **labels: str) -> float:
    return sum(
        one.value
        for one in broker.node.registry.samples()
        if one.name == name and set(labels.items()) <= set(one.labels)
    )


def held(broker: RunningBroker) -> dict[str, int]:
    return {name: count for name, count in broker.node.server._admission.by_listener.items() if count}


async def test_another_broker_takes_the_place_of_the_client_that_was_idle_longest(tmp_path: Path) -> None:
    async with running_broker(tmp_path, max_connections=3, **TWO) as broker, clients(broker) as connect:
        first, second, third = [await connect("OUT") for _ in range(3)]
        loop = asyncio.get_running_loop()
        for client in (second, third, first):
            assert await hello(client)
            said_s = loop.time()
            while loop.time() == said_s:  # in whole milliseconds
                await asyncio.sleep(0)
        for _ in range(2):
            assert await hello(await connect("IN"))
        assert [await is_cut(client) for client in (second, third)] == [True, True]
        assert await hello(first)
        assert counter(broker, "firn_connections_made_room_total") == 2
        assert held(broker) == {"IN": 2, "OUT": 1}


async def test_a_client_does_not_take_the_place_of_anybody(tmp_path: Path) -> None:
    async with running_broker(tmp_path, max_connections=2, **TWO) as broker, clients(broker) as connect:
        inside, outside = await connect("IN"), await connect("OUT")
        assert [await hello(one) for one in (inside, outside)] == [True, True]
        waiting = asyncio.create_task(hello(await connect("OUT")))
        await until(lambda: counter(broker, "firn_connections_full_total"))
        for _ in range(5):
            assert [await hello(one) for one in (inside, outside)] == [True, True]
        assert not waiting.done()
        await outside.close()
        async with asyncio.timeout(60):
            assert await waiting


async def test_a_listener_has_its_own_limit_and_the_other_goes_on(tmp_path: Path) -> None:
    settings = {"security": {"listener.name.out.max.connections": "1"}}
    async with running_broker(tmp_path, **TWO, **settings) as broker, clients(broker) as connect:
        outside = await connect("OUT")
        assert await hello(outside)
        waiting = asyncio.create_task(hello(await connect("OUT")))
        for _ in range(5):
            assert await hello(await connect("IN"))
        assert not waiting.done()
        await alter(broker, "listener.name.out.max.connections", 2)
        async with asyncio.timeout(60):
            assert await waiting
        assert held(broker) == {"IN": 5, "OUT": 2}


async def test_an_address_has_as_many_as_it_may_and_each_that_leaves_makes_room(tmp_path: Path) -> None:
    async with running_broker(tmp_path, max_connections_per_ip=2) as broker, clients(broker) as connect:
        first, second = [await connect("PLAINTEXT") for _ in range(2)]
        assert [await hello(one) for one in (first, second)] == [True, True]
        assert await is_cut(await connect("PLAINTEXT"))
        assert counter(broker, "firn_connections_refused_total", limit="max.connections.per.ip") == 1
        assert any("max.connections.per.ip" in line for line in broker.lines)
        await first.close()
        await until(lambda: held(broker) == {"PLAINTEXT": 1})
        third = await connect("PLAINTEXT")
        assert await hello(third)
        await alter(broker, "max.connections.per.ip.overrides", "127.0.0.1:3,10.0.0.1:1", "1")
        assert await hello(await connect("PLAINTEXT"))
        assert await is_cut(await connect("PLAINTEXT"))


async def test_limits_that_change_count_at_once_and_close_what_is_above_max_connections(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, clients(broker) as connect:
        first, second, third = [await connect("PLAINTEXT") for _ in range(3)]
        for client in (first, second, third):
            assert await hello(client)
        used_s = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < used_s + 0.01:  # its clock stands still within a turn
            assert [await hello(one) for one in (third, first)] == [True, True]
        await alter(broker, "max.connections", 2)
        assert await is_cut(second)
        waiting = asyncio.create_task(hello(await connect("PLAINTEXT")))
        assert [await hello(one) for one in (first, third)] == [True, True]
        assert not waiting.done()
        await alter(broker, "max.connections", 10)
        async with asyncio.timeout(60):
            assert await waiting


@pytest.mark.parametrize(
    "name", ["max.connection.creation.rate", "listener.name.plaintext.max.connection.creation.rate"]
)
async def test_connections_that_come_too_fast_wait_and_are_served(tmp_path: Path, name: str) -> None:
    async with running_broker(tmp_path) as broker, clients(broker) as connect:
        server = broker.node.server
        now_s = [server.loop.time()]
        server.now_s = lambda: now_s[0]  # so that a slow machine's time does not count
        await alter(broker, name, 2)
        assert [await hello(await connect("PLAINTEXT")) for _ in range(2)] == [True, True]
        waiting = asyncio.create_task(hello(await connect("PLAINTEXT")))
        await until(lambda: counter(broker, "firn_connections_full_total"))
        assert held(broker) == {"PLAINTEXT": 2}
        assert not waiting.done()
        now_s[0] += 1.0
        async with asyncio.timeout(60):
            assert await waiting


async def test_limits_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        for name, value, why in (
            ("max.connections", -1, "at least 0"),
            ("max.connections.per.ip", 0, "max.connections.per.ip.overrides"),
            ("max.connections.per.ip.overrides", "localhost:5", "are not looked up"),
            ("max.connections.per.ip.overrides", "127.0.0.1:-5", "number of connections"),
            ("listener.name.plaintext.max.connections", "x", "Not a number"),
            ("listener.name.plaintext.max.connections.per.ip", 1, "Unknown"),
        ):
            with pytest.raises(RequestRejected, match=why):
                await alter(broker, name, value)


# --- before TLS and logins -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT"])
async def test_clients_count_before_their_handshake_and_their_login(
    tmp_path: Path, folder: Path, protocol: str
) -> None:
    secured = security(listener(protocol, folder))
    async with running_broker(tmp_path, max_connections_per_ip=2, **secured) as broker, clients(broker) as connect:
        silent = [await connect(protocol) for _ in range(2)]
        await until(lambda: held(broker) == {protocol: 2})
        assert await is_cut(await connect(protocol))
        for client in silent:
            await client.close()
        await until(lambda: not held(broker))
        assert await handshakes(broker, folder) if protocol == "SSL" else True


async def test_a_handshake_that_is_not_finished_makes_room_for_a_broker(tmp_path: Path, folder: Path) -> None:
    outside = listener("SSL", folder, name="OUT")
    settings = {"listeners": (IN, outside), "inter_broker_listener": "IN"}
    async with running_broker(tmp_path, max_connections=4, **settings) as broker, clients(broker) as connect:
        first = await connect("OUT")
        await until(lambda: held(broker) == {"OUT": 1})
        await connect("OUT")
        await until(lambda: held(broker) == {"OUT": 2})
        for _ in range(3):
            assert await hello(await connect("IN"))
        assert await is_cut(first)
        assert held(broker) == {"IN": 3, "OUT": 1}
        assert len(broker.node.server.arrivals) == 1


async def handshakes(broker: RunningBroker, folder: Path) -> bool:
    """Whether a client gets through the handshake and is served."""
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    (port,) = broker.node.ports.values()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    try:
        return await hello(Talk(reader, writer))
    finally:
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


# --- floods ----------------------------------------------------------------------------------------------------------

HALF_OPEN: Final = 5000
CLIENT_HELLO_START: Final = bytes.fromhex("16030100f8010000f40303")
"""The first bytes of a handshake, so that the broker has to wait for the rest."""
MEMORY_BYTES_MAX: Final = 200 * MIB


@contextmanager
def open_files(count: int) -> Iterator[None]:
    """A process that may open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"needs {count} open files, and may have {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def half_open(port: int, count: int, stack: AsyncExitStack) -> None:
    """Connect so many clients that begin a handshake and do no more."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        client = stack.enter_context(socket.socket())
        client.setblocking(False)
        async with asyncio.timeout(60):
            await loop.sock_connect(client, ("127.0.0.1", port))
            with suppress(ConnectionError):
                await loop.sock_sendall(client, CLIENT_HELLO_START)


@pytest.mark.ci
async def test_5000_half_open_handshakes_cost_bounded_memory_and_keep_nobody_out(tmp_path: Path, folder: Path) -> None:
    settings = security(listener("SSL", folder)) | {"security": {"firn.authentication.timeout.ms": "600000"}}
    with open_files(HALF_OPEN + 3000):
        async with running_broker(tmp_path, descriptors_max=20_000, **settings) as broker, AsyncExitStack() as stack:
            known = stack.enter_context(closing_later(await tls_client(broker, folder)))
            assert await hello(known)
            process = psutil.Process()
            before_bytes = process.memory_info().rss
            await half_open(broker.node.port, HALF_OPEN, stack)
            assert len(broker.node.server.arrivals) <= 1000
            assert await hello(known), "who is known is not touched"
            assert await handshakes(broker, folder), "who finishes soon comes in"
            grown_bytes = process.memory_info().rss - before_bytes
            assert grown_bytes < MEMORY_BYTES_MAX, grown_bytes


async def test_half_open_handshakes_never_fill_a_small_broker(tmp_path: Path, folder: Path) -> None:
    settings = security(listener("SSL", folder)) | {"security": {"firn.authentication.timeout.ms": "600000"}}
    async with running_broker(tmp_path, max_connections=10, **settings) as broker, AsyncExitStack() as stack:
        await half_open(broker.node.port, 40, stack)
        assert len(broker.node.server.arrivals) <= 5
        assert await handshakes(broker, folder)


async def shaken(port: int, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, End]:
    """A client that is through its handshake. One that a slow machine has made too late for it tries again."""
    async with asyncio.timeout(60):
        while True:
            end = End(context)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(end.opening())
            with suppress(ConnectionError):
                while not end.shaken and (came := await reader.read(65_536)):
                    writer.write(end.take(came))
            if end.shaken:
                return reader, writer, end
            writer.transport.abort()


@pytest.mark.parametrize("part", ["handshake", "login"])
async def test_who_sends_byte_by_byte_gets_no_more_time_to_be_known(tmp_path: Path, folder: Path, part: str) -> None:
    settings = security(listener("SASL_SSL", folder)) | {"security": {"firn.authentication.timeout.ms": "500"}}
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    async with running_broker(tmp_path, **settings) as broker:
        if part == "login":
            reader, writer, end = await shaken(broker.node.port, context)
            slowly = [end.seal(bytes([byte])) for byte in (2000).to_bytes(4, "big") + bytes(600)]
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.node.port)
            slowly = [bytes([byte]) for byte in End(context).opening()]
        sent = 0
        ended = asyncio.ensure_future(reader.read())
        while not ended.done() and sent < len(slowly):
            writer.write(slowly[sent])
            sent += 1
            await asyncio.wait([ended], timeout=0.01)
        assert sent < len(slowly), "the broker listens to all of it"
        writer.transport.abort()
        await asyncio.wait([ended])
        with suppress(ConnectionError):
            await ended
        assert len(broker.node.server.arrivals) == 0


@contextmanager
def closing_later(client: Talk) -> Iterator[Talk]:
    try:
        yield client
    finally:
        client.writer.transport.abort()


async def tls_client(broker: RunningBroker, folder: Path) -> Talk:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    return Talk(*await asyncio.open_connection("127.0.0.1", broker.node.port, ssl=context, server_hostname="localhost"))


class Unread:
    """The transport of a client that takes nothing of what it is sent from now on."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.unsent_bytes = 0

    def write(self, data: bytes) -> None:
        self.unsent_bytes += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def s_client(port: int, folder: Path, said: Path, *options: str) -> Iterator[socket.socket]:
    """``openssl s_client``. Each packet that is sent to it is one of its commands. What it says goes to the file ``said``."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", str(folder / "ca.pem"), *options]
    with ours, its, said.open("wb") as output:
        process = subprocess.Popen(command, stdin=its, stdout=output, stderr=output)
        its.close()
        try:
            yield ours
        finally:
            process.kill()
            process.wait()


UPDATES: Final = 20_000
"""Each is answered with 27 bytes."""
LEAST_UNSENT_BYTES: Final = 64 * 1024


def flood(commands: socket.socket) -> None:
    with suppress(OSError):  # it was killed
        for _ in range(UPDATES):
            commands.send(b"K\n")


async def test_a_flood_of_key_updates_whose_answers_nobody_reads_is_not_read_either(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.transport.tls.UNSENT_BYTES_MAX", LEAST_UNSENT_BYTES)
    async with running_broker(tmp_path, **security(listener("SSL", folder))) as broker:
        with s_client(broker.node.port, folder, tmp_path / "said", "-tls1_3") as commands:
            await until(lambda: broker.node.server._connections)
            (place,) = broker.node.server._places.values()
            link: Any = place.ends
            link._raw = Unread(link._raw)
            flooding = threading.Thread(target=flood, args=(commands,), daemon=True)
            flooding.start()
            # It also pauses for a moment while records that have arrived wait for their turn.
            await until(lambda: (link._raw_paused and not link._rest) or not flooding.is_alive())
            assert link._raw_paused, "the broker reads on"
            assert LEAST_UNSENT_BYTES < link.get_write_buffer_size() < LEAST_UNSENT_BYTES + 300 * 1024
            assert await handshakes(broker, folder), "others are served"


async def test_a_client_of_tls_1_2_cannot_negotiate_again(tmp_path: Path, folder: Path) -> None:
    said = tmp_path / "said"
    async with running_broker(tmp_path, **security(listener("SSL", folder))) as broker:
        with s_client(broker.node.port, folder, said, "-tls1_2") as commands:
            await until(lambda: b"TLSv1.2" in said.read_bytes() and broker.node.server._connections)
            commands.send(b"R\n")
            await until(lambda: b"no renegotiation" in said.read_bytes())
        assert await handshakes(broker, folder)
