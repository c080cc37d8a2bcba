"""Whether the HTTP process will be able to listen, asked before the broker says that it is ready."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from errno import EADDRINUSE
from typing import Final

from app.core.errors import ConfigError
from app.machine.listeners import ListeningProcess, listeners_on

HTTP_MODULE: Final = "app.http"
WAIT_S: Final = 3.0
"""How long the HTTP process of a killed broker may take to end."""
ASK_S: Final = 0.25


async def check_http_address(
    http_address: str, *, holders_of: Callable[[int], Sequence[ListeningProcess]] = listeners_on
) -> None:
    """Check that ``host:port`` is free. A line of the log would come too late: the broker has said that it is ready by then.

    The HTTP process of a killed broker gets ``WAIT_S`` to end. ``holders_of`` returns the processes that listen on a port.

    Raises: ConfigError if the address is in use, or cannot be listened on.
    """
    host, _, port = http_address.rpartition(":")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT_S
    while True:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            in_use = error.errno == EADDRINUSE
            holders = holders_of(int(port)) if in_use else []
            if not (in_use and may_end(holders)) or loop.time() >= deadline:
                by = f" by {holders[0]}" if holders else ""
                raise ConfigError(
                    f"Cannot listen on {http_address} for HTTP: {error.strerror or error}{by}; free the address, "
                    "give another --http, or --http off."
                ) from error
        else:
            return
        await asyncio.sleep(ASK_S)


def may_end(holders: Sequence[ListeningProcess]) -> bool:
    """Whether an address that these processes hold may soon be free: HTTP processes without a broker end by themselves. None are
    seen where the holder has just ended, or belongs to another user."""
    return all(HTTP_MODULE in one.command and "serve" not in one.parent_command for one in holders)
