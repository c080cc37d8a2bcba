"""The network between broker processes: a proxy for each way from one broker to another, which a test can cut.

A cut drops nothing by itself: as TCP does, bytes that were sent into it arrive when it is healed, unless somebody has given up the
connection before. ``reset`` ends the connections of a way at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

PIECE_BYTES = 1 << 16

Way = tuple[int, int]
"""From one broker to another, by node id."""


class Links:
    """Proxies for all ways between brokers, in a thread of their own. Use as a context manager.

    ``ports[a, b]`` is where broker ``a`` reaches broker ``b``.
    """

    def __init__(self, brokers: Mapping[int, int], hosts: Mapping[int, str]) -> None:
        """``brokers``: the true port of each node id. ``hosts``: its address, where its proxies are, too."""
        self._brokers = brokers
        self._hosts = hosts
        self.ports: dict[Way, int] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: dict[Way, asyncio.Event] = {}
        """Set while bytes pass from the first to the second."""
        self._connections: dict[Way, set[asyncio.StreamWriter]] = {}
        """By who opened them."""
        self.ended: Counter[Way] = Counter()
        """Connections that ended, by who had opened them."""
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Links:
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)  # type: ignore[arg-type]

    # --- what a test does ---------------------------------------------------------------------------------------------

    def cut(self, ways: Iterable[Way]) -> None:
        """Let nothing pass these ways. Both ways between two brokers: they are apart."""
        self._call(self._set(tuple(ways), passes=False))

    def heal(self, ways: Iterable[Way] | None = None) -> None:
        """Let everything pass again; without ``ways`` everywhere."""
        self._call(self._set(tuple(self.ports if ways is None else ways), passes=True))

    def carries(self, way: Way) -> bool:
        """Whether the first has a connection to the second now."""
        return bool(self._connections[way])

    def passes(self, way: Way) -> bool:
        """Whether bytes pass."""
        return self._open[way].is_set()

    def reset(self, ways: Iterable[Way]) -> None:
        """End the connections that were opened on these ways."""
        self._call(self._reset(tuple(ways)))

    def apart(self, some: Iterable[int], others: Iterable[int]) -> list[Way]:
        """All ways between two sets of brokers."""
        second = tuple(others)
        return [way for one in some for other in second if one != other for way in ((one, other), (other, one))]

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        for one in self._brokers:
            for other, port in self._brokers.items():
                if one == other:
                    continue
                way = one, other
                self._open[way] = asyncio.Event()
                self._open[way].set()
                self._connections[way] = set()

                async def serve(
                    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way = way, port: int = port
                ) -> None:
                    await self._serve(way, port, reader, writer)

                server = await asyncio.start_server(serve, self._hosts[other], 0)
                self._servers.append(server)
                self.ports[way] = server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await self._reset(tuple(self.ports))
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def _set(self, ways: tuple[Way, ...], *, passes: bool) -> None:
        for way in ways:
            if passes:
                self._open[way].set()
            else:
                self._open[way].clear()

    async def _reset(self, ways: tuple[Way, ...]) -> None:
        for way in ways:
            for writer in tuple(self._connections[way]):
                writer.transport.abort()

    async def _serve(self, way: Way, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back = way[1], way[0]
        self._connections[way].add(writer)
        serving = asyncio.current_task()
        assert serving is not None
        self._tasks.add(serving)
        beyond: asyncio.StreamWriter | None = None
        try:
            await self._open[way].wait()
            answers, beyond = await asyncio.open_connection(self._hosts[way[1]], port)
            pumps = [
                self._loop.create_task(self._pump(reader, beyond, self._open[way])),
                self._loop.create_task(self._pump(answers, writer, self._open[back])),
            ]
            self._tasks.update(pumps)
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                self._tasks.difference_update(pumps)
        except (OSError, asyncio.CancelledError):
            return  # the test is over, or the broker is dead: whoever asks finds a connection that ends
        finally:
            self._tasks.discard(serving)
            self._connections[way].discard(writer)
            self.ended[way] += 1
            writer.transport.abort()
            if beyond is not None:
                beyond.transport.abort()

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while data := await reader.read(PIECE_BYTES):
                await passes.wait()
                writer.write(data)
                await writer.drain()
