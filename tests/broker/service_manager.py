"""A service manager, as systemd, with the socket that it listens to."""

from __future__ import annotations

import socket


class Manager:
    """Has systemd's end of the socket."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(60)
        self.told: list[dict[str, str]] = []

    def next(self) -> dict[str, str]:
        """The fields of the next message."""
        fields = dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))
        self.told.append(fields)
        return fields

    def until(self, field: str) -> dict[str, str]:
        while True:
            fields = self.next()
            if field in fields:
                return fields
