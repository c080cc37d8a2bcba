"""The secret of a secured cluster, those who log in with it, and those who should not get in."""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, Producer

from app.cli.tls import issue
from infra.rehearsal.machine import Failed
from tests.support.secured import add_certificate

LOGIN_S = 60.0
"""How long a client may take until it is in, or is refused."""


class Keys:
    """An authority, the brokers' certificate for these names, and passwords. ``renew`` is what a person does who changes them."""

    def __init__(self, folder: Path, *hosts: str) -> None:
        self._folder = folder
        self.hosts = hosts
        self._keystore = folder / "broker.pem"
        issue(folder, hosts=list(hosts), clients=[], now=datetime.now(UTC))
        self.users = {name: secrets.token_urlsafe(18) for name in ("admin", "metrics")}

    def renew(self, *users: str) -> None:
        """Another key and certificate of the same subject, another password of the administrator, and further users."""
        self._keystore = add_certificate(self._folder, "renewed", *self.hosts, subject="broker")
        self.users |= {name: secrets.token_urlsafe(18) for name in ("admin", *users)}

    @property
    def authority(self) -> Path:
        return self._folder / "ca.pem"

    @property
    def secret(self) -> str:
        keystore = self._keystore.read_text()
        return json.dumps({"version": 1, "keystore": keystore, "users": self.users, "settings": {}})

    @property
    def certificate(self) -> bytes:
        """That of the brokers, as a client is shown it (DER)."""
        text = self._keystore.read_text()
        begin = text.index("-----BEGIN CERTIFICATE-----")
        return ssl.PEM_cert_to_DER_cert(text[begin : text.index("-----END CERTIFICATE-----") + 25])

    @property
    def words(self) -> dict[str, str]:
        """Pieces of the secret that nobody may see, by what they are."""
        key = self._keystore.read_text().splitlines()[2]
        return {**{f"the password of {name}": text for name, text in self.users.items()}, "the private key": key}

    def login(self, user: str, password: str = "") -> dict[str, Any]:
        """Settings of librdkafka."""
        return {
            **self.no_login(),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password or self.users[user],
        }

    def no_login(self) -> dict[str, Any]:
        return {"security.protocol": "SSL", "ssl.ca.location": str(self.authority)}

    # --- clients

    def shown_certificate(self, host: str, port: int) -> bytes:
        """What a new connection is shown (DER). Raises: OSError, if the name or the authority is wrong, too."""
        context = ssl.create_default_context(cafile=str(self.authority))
        with socket.create_connection((host, port), 30) as raw, context.wrap_socket(raw, server_hostname=host) as one:
            return one.getpeercert(binary_form=True) or b""

    def ask(self, url: str, user: str = "", body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and body of a response to this user, or to nobody in particular. Raises: OSError."""
        headers = {} if body is None else {"Content-Type": "application/json"}
        if user:
            headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{self.users[user]}".encode()).decode()
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, headers=headers)
        context = ssl.create_default_context(cafile=str(self.authority)) if url.startswith("https:") else None
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as answer:
                return int(answer.status), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


def check_refused(client: Mapping[str, Any], what: str) -> None:
    """Raises: Failed unless brokers refuse a client with these settings."""
    refused: list[KafkaError] = []
    delivered: list[bool] = []
    producer = Producer({**client, "log_level": 0, "error_cb": refused.append, "message.timeout.ms": 5_000})
    producer.produce("first", b"not me", on_delivery=lambda error, _: delivered.append(error is None))
    producer.flush(LOGIN_S)
    end_s = time.monotonic() + LOGIN_S
    while not refused and time.monotonic() < end_s:
        producer.poll(0.1)
    if delivered != [False]:
        raise Failed(f"{what}: a record was acknowledged, or its end is not known: {delivered}.")
    if not refused:
        raise Failed(f"{what}: the record was not acknowledged, but nothing was refused.")


class Watched:
    """What stood on command lines of any process."""

    def __init__(self) -> None:
        self.lines: set[str] = set()

    def holds(self, words: Mapping[str, str]) -> list[str]:
        return sorted(what for what, word in words.items() if any(word in line for line in self.lines))


@contextmanager
def watched_command_lines() -> Iterator[Watched]:
    """Look at them all the time, as anybody on a machine may: the processes of machines are in this process name space, too."""
    watched, ended = Watched(), threading.Event()

    def watch() -> None:
        while not ended.wait(0.03):
            for name in filter(str.isdigit, os.listdir("/proc")):
                try:
                    watched.lines.add(Path("/proc", name, "cmdline").read_bytes().decode(errors="replace"))
                except OSError:
                    continue  # it has ended

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield watched
    finally:
        ended.set()
        thread.join(10)
