"""A simulated network between machines: connections that carry bytes in order, late, in pieces, one way only, or not at all.

Both ends run the real code: the end that dials has a protocol of ``app/client``, the other one a ``Connection`` of the broker. What
is under way is the network's, so it arrives whether or not its sender lives. While a way is cut, bytes wait, as TCP would send them
again; they arrive when it is healed. A killed process has its connections reset by its machine's kernel. A machine without power
says nothing; what arrives there after its next boot is answered with a reset.

Not modelled: loss of a connection by a time-out of TCP itself (a cut lasts shorter than that), and the limit of the queue of
connections that were not accepted yet.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any, Protocol

from app.client.connection import Dialer
from app.handlers.serving.server import KafkaServer
from tests.sim.loop import Process, SimLoop
from tests.sim.wire import NumberedConnection

LATENCY_S = (0.0001, 0.002)
BUFFER_BYTES = 64 * 1024
"""As much as is under way before a sender is told to wait."""
AGAIN_S = (0.0, 0.3)
"""After a way is healed, until what waited is sent again."""


class Host(Protocol):
    """A machine of the network."""

    powered: bool
    process: Process | None

    def listening(self) -> KafkaServer | None:
        """The server that accepts connections here now."""


class Network:
    """See the module. ``machine_of`` finds the machine of a host name."""

    def __init__(
        self, loop: SimLoop, rng: random.Random, outside: Context, machine_of: Callable[[str], Host | None]
    ) -> None:
        self.loop, self.rng, self.outside, self.machine_of = loop, rng, outside, machine_of
        self.latency_s = LATENCY_S
        self.connections: list[_Connection] = []
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._numbers = 0

    def dialer(self, host: str, process: Process | None) -> Dialer:
        """How a process on ``host`` opens connections; None is a client, which is no part of the cluster."""

        async def dial(protocol: Callable[[], asyncio.BufferedProtocol], to: str, port: int) -> None:
            self._numbers += 1
            connection = _Connection(self, self._numbers, host, to, process, protocol)
            self.connections = [one for one in self.connections if not one.over] + [connection]
            try:
                await connection.made
            except asyncio.CancelledError:
                connection.dialling.abort()
                raise

        return dial

    def is_cut(self, source: str, target: str) -> bool:
        return self._cuts[source, target] > 0

    def cut(self, ways: Iterable[tuple[str, str]]) -> None:
        self._cuts.update(ways)

    def heal(self, ways: Iterable[tuple[str, str]]) -> None:
        """Undo one ``cut`` of the same ways."""
        self._cuts.subtract(ways)
        self._cuts = +self._cuts
        for connection in self.connections:
            connection.up.go_on()
            connection.down.go_on()

    def heal_all(self) -> None:
        self._cuts.clear()
        self.heal(())

    def reset(self, hosts: tuple[str, str]) -> None:
        """Reset every connection between two hosts, at both ends."""
        for connection in self.connections:
            if {connection.dialling.host, connection.accepting.host} == set(hosts):
                connection.dialling.broken()
                connection.accepting.broken()

    def process_died(self, process: Process, *, told: bool) -> None:
        """``told``: its kernel lives, and resets its connections."""
        for connection in self.connections:
            for end in (connection.dialling, connection.accepting):
                if end.process is process:
                    end.gone = True
                    if told:
                        end.way.send(_RESET)

    def latency(self) -> float:
        return self.rng.uniform(*self.latency_s)


_SYN, _ACCEPTED, _END, _RESET = "syn", "accepted", "end", "reset"


class _Way:
    """One direction of a connection: what was sent arrives in order."""

    def __init__(self, network: Network, source: str, target: str, arrived: Callable[[bytes | str], None]) -> None:
        self._network, self._source, self._target, self._arrived = network, source, target, arrived
        self._last_s = 0.0
        self._held: deque[bytes | str] = deque()
        self._flushes = False
        self.bytes_under_way = 0

    def send(self, item: bytes | str) -> None:
        network = self._network
        if isinstance(item, bytes):
            self.bytes_under_way += len(item)
        self._last_s = max(self._last_s + 1e-6, network.loop.time() + network.latency())
        network.loop.call_at(self._last_s, self._comes, item, context=network.outside)

    def _comes(self, item: bytes | str) -> None:
        if self._held or self._network.is_cut(self._source, self._target):
            self._held.append(item)
        else:
            self._arrived(item)

    def go_on(self) -> None:
        if self._held and not self._flushes and not self._network.is_cut(self._source, self._target):
            self._flushes = True
            wait_s = self._network.rng.uniform(*AGAIN_S)
            self._network.loop.call_later(wait_s, self._flush, context=self._network.outside)

    def _flush(self) -> None:
        self._flushes = False
        while self._held and not self._network.is_cut(self._source, self._target):
            self._arrived(self._held.popleft())


class _Connection:
    """A connection between two hosts."""

    def __init__(
        self,
        network: Network,
        number: int,
        source: str,
        target: str,
        process: Process | None,
        protocol: Callable[[], asyncio.BufferedProtocol],
    ) -> None:
        self.network, self.number = network, number
        self.made: asyncio.Future[None] = network.loop.create_future()
        self._protocol = protocol
        self.up = _Way(network, source, target, self._at_accepting)
        self.down = _Way(network, target, source, self._at_dialling)
        self.dialling = _End(self, source, target, process, self.up, self.down)
        self.accepting = _End(self, target, source, None, self.down, self.up)
        self.accepting.gone = True  # until it is accepted
        self.up.send(_SYN)

    @property
    def over(self) -> bool:
        return self.dialling.gone and self.accepting.gone and self.made.done()

    def _at_accepting(self, item: bytes | str) -> None:
        network = self.network
        machine = network.machine_of(self.accepting.host)
        if machine is None or not machine.powered:
            return
        if item == _SYN:
            server = machine.listening()
            if server is None:
                self.down.send(_RESET)
                return
            self.accepting.gone = False
            self.accepting.process = machine.process
            self.accepting.made(NumberedConnection(server, self.number))
            self.down.send(_ACCEPTED)
        elif self.accepting.gone or self.accepting.process is not machine.process:
            if item not in (_RESET, _END):
                self.down.send(_RESET)
        else:
            self.accepting.take(item)

    def _at_dialling(self, item: bytes | str) -> None:
        end = self.dialling
        machine = self.network.machine_of(end.host)
        if machine is not None and not machine.powered:
            return
        if end.gone or (end.process is not None and end.process.dead):
            if item not in (_RESET, _END):
                self.up.send(_RESET)
        elif self.made.done() and not end.began:
            if item == _ACCEPTED:  # whoever dialled has given up
                self.up.send(_RESET)
        elif item == _ACCEPTED:
            end.began = True
            end.made(self._protocol(), self._open)
        elif item == _RESET and not end.began:
            end.gone = True
            end.run(self._refused)
        else:
            end.take(item)

    def _open(self) -> None:
        if not self.made.done():
            self.made.set_result(None)

    def _refused(self) -> None:
        if not self.made.done():
            self.made.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, "refused"))


class _End:
    """One end of a connection: the transport of its process."""

    def __init__(
        self, connection: _Connection, host: str, peer: str, process: Process | None, way: _Way, back: _Way
    ) -> None:
        self._connection = connection
        self.host, self._peer, self.process, self.way, self._back = host, peer, process, way, back
        self.began = False
        self.gone = False
        """Nobody is at this end any more."""
        self._closing = False
        self._reading = True
        self._told_to_wait = False
        self._arrived: deque[bytes | str] = deque()
        self._protocol: Any = None

    # --- called by the network ----------------------------------------------------------------------------------------

    def run(self, callback: Callable[..., object], *args: object) -> None:
        """As a part of the process, which may stand still."""
        loop = self._connection.network.loop
        if self.process is None:
            loop.call_soon(callback, *args, context=self._connection.network.outside)
        elif not self.process.dead:
            loop.call_soon(callback, *args, context=self.process.context)

    def made(self, protocol: Any, then: Callable[[], None] = lambda: None) -> None:
        self._protocol = protocol

        def begin() -> None:
            protocol.connection_made(self)
            then()

        self.run(begin)

    def take(self, item: bytes | str) -> None:
        self.run(self._take, item)

    def broken(self) -> None:
        """The network gives the connection up."""
        if not self.gone and self._protocol is not None:
            self.run(self._lost, ConnectionResetError(errno.ECONNRESET, "reset"))

    def _take(self, item: bytes | str) -> None:
        self._arrived.append(item)
        self._feed()

    def _feed(self) -> None:
        while self._arrived and self._reading and not self.gone:
            item = self._arrived.popleft()
            if item == _RESET:
                self._lost(ConnectionResetError(errno.ECONNRESET, "reset"))
            elif item == _END:
                self.way.send(_END)
                self._lost(None)
            elif isinstance(item, bytes) and not self._closing:
                self._back.bytes_under_way -= len(item)
                self._other().room()
                while item and not self._closing:
                    buffer = self._protocol.get_buffer(-1)
                    length = min(len(buffer), len(item))
                    buffer[:length] = item[:length]
                    item = item[length:]
                    self._protocol.buffer_updated(length)

    def _other(self) -> _End:
        connection = self._connection
        return connection.accepting if self is connection.dialling else connection.dialling

    def room(self) -> None:
        if self._told_to_wait and self.way.bytes_under_way <= BUFFER_BYTES // 2:
            self._told_to_wait = False
            if not self.gone:
                self.run(self._protocol.resume_writing)

    def _lost(self, error: Exception | None) -> None:
        if not self.gone:
            self.gone = self._closing = True
            self._protocol.connection_lost(error)

    # --- called by the protocol ---------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: object = None) -> object:
        return (self._peer, self._connection.number) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.way.bytes_under_way

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: bytes | memoryview) -> None:
        if self._closing:
            return
        whole = bytes(data)
        rng = self._connection.network.rng
        if len(whole) > 8 and rng.random() < 0.1:
            cut = rng.randrange(1, len(whole))
            self.way.send(whole[:cut])
            whole = whole[cut:]
        self.way.send(whole)
        if self.way.bytes_under_way > BUFFER_BYTES and not self._told_to_wait:
            self._told_to_wait = True
            self._protocol.pause_writing()

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.write(b"".join(pieces))

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._arrived:
            self.run(self._feed)

    def close(self) -> None:
        self._end(_END)

    def abort(self) -> None:
        self._end(_RESET)

    def _end(self, how: str) -> None:
        if self._closing:
            return
        self._closing = True
        self.way.send(how)
        if self._protocol is not None:
            self.run(self._lost, None)
        else:
            self.gone = True
