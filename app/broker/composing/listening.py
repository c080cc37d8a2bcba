"""The addresses of a broker: bound early in the start, served late.

Tests: ``tests/broker/test_listeners.py``, ``tests/broker/test_stages.py``.
"""

from __future__ import annotations

import socket

from app.configs import BrokerConfig
from app.core.errors import ConfigError
from app.handlers.serving.server import KafkaServer
from app.metadata.image.records import Endpoint


class Addresses:
    """The sockets of one broker."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._sockets: dict[str, socket.socket] = {}
        """The bound sockets, by the name of the listener."""
        self.ports: dict[str, int] = {one.name: one.port for one in config.served}
        """By the name of the listener. A port that the system chooses is known after ``bind``."""
        self.port = config.listen_port

    @property
    def endpoints(self) -> list[Endpoint]:
        """The addresses of this broker, for its registration. The first is for other brokers."""
        return [
            Endpoint(
                one.name,
                one.advertised_host or one.host,
                one.advertised_port or self.ports[one.name],
                one.protocol.value,
            )
            for one in self._config.served
        ]

    def bind(self) -> None:
        """Bind all addresses. Connections are accepted later. Raises: ConfigError; ``close`` is due then, too."""
        for one in self._config.served:
            self._sockets[one.name] = bound = bind(one.host, one.port)
            self.ports[one.name] = int(bound.getsockname()[1])
        self.port = self.ports[self._config.local.name]

    async def listen(self, server: KafkaServer) -> None:
        """Accept connections. Without bound addresses, ``server`` takes only the connections that it is handed."""
        if not self._sockets:
            server.attach()
        for name, bound in self._sockets.items():
            await server.listen(bound, server.maker(name), name)

    async def close(self) -> None:
        """Free the addresses."""
        for bound in self._sockets.values():
            bound.close()


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound, and does not listen yet. Raises: ConfigError."""
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit the option, as in Kafka. A load balancer forgets a connection that is silent.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        bound.bind(address)
    except OSError as error:
        if bound is not None:
            bound.close()
        raise ConfigError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}; free the address or give another --listen."
        ) from error
    return bound
