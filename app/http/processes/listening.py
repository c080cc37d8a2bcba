"""The socket that HTTP listens on. Tests: ``tests/http/test_process.py``."""

from __future__ import annotations

import socket
from typing import Final

from app.core.errors import ConfigError

BACKLOG: Final = 1024


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises: ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(f"HTTP cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}.") from None
    return listening
