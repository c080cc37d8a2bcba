"""``firn http``: the settings that its flags make, and the process that it becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.core.limits import HTTP_CONNECTIONS_MAX, HTTP_HEADER_TIMEOUT_MS
from app.http import server
from app.http.gateway import HttpSettings
from app.http.processes import supervisor
from app.http.processes.worker import Worker
from app.machine import terminating
from tests.support.secured import certificates

CODE = 7
"""The exit code of the process that is started in a test."""


class Started:
    """What the command started in place of a process that serves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings: HttpSettings | None = None
        self.places: list[dict[str, Any]] = []
        self.supervised: list[dict[str, Any]] = []
        self.parents: list[int] = []
        monkeypatch.setattr(server, "run", self._run)
        monkeypatch.setattr(supervisor, "supervise", self._supervise)
        monkeypatch.setattr(terminating, "end_with_parent", self.parents.append)

    def _run(self, settings: HttpSettings, **place: Any) -> int:
        self.settings = settings
        self.places.append(place)
        return CODE

    def _supervise(self, **place: Any) -> int:
        self.supervised.append(place)
        return CODE

    def of(self, *flags: str) -> HttpSettings:
        assert main(["http", *flags]) == CODE
        assert self.settings is not None
        return self.settings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    return Started(monkeypatch)


def test_a_process_without_flags_serves_the_loopback_address(started: Started) -> None:
    settings = started.of()
    assert started.places == [{"host": "127.0.0.1", "port": 8080, "parent_fd": None}]
    assert settings.bootstrap == (("127.0.0.1", 9092),)
    assert settings.allowed_hosts == ("127.0.0.1",)
    assert (settings.connections_max, settings.header_timeout_ms) == (HTTP_CONNECTIONS_MAX, HTTP_HEADER_TIMEOUT_MS)
    assert not any((settings.anonymous, settings.plain_credentials, settings.console_read_only, settings.names_callers))
    assert (settings.tls, settings.worker, settings.forwarded_header) == (None, None, "x-forwarded-for")
    assert started.supervised == started.parents == []


def test_flags_become_settings(started: Started) -> None:
    settings = started.of(
        *("--listen", "127.0.0.1:81", "--http-allowed-hosts", "firn.example", "--max-connections", "5"),
        *("--http-allowed-origins", "https://ui.example", "--header-timeout-ms", "6", "--body-timeout-ms", "7"),
        *("--instance-timeout-ms", "8", "--anonymous", "--plain-credentials", "--console-read-only"),
        *("--console-mask", "orders-*:customer.email", "--trusted-proxies", "10.0.0.0/8"),
        *("--forwarded-header", "Forwarded", "--name-callers"),
    )
    assert started.places[0]["port"] == 81
    assert settings.allowed_hosts == ("127.0.0.1", "firn.example")
    assert settings.allowed_origins == ("https://ui.example",)
    assert (settings.connections_max, settings.header_timeout_ms) == (5, 6)
    assert (settings.body_idle_timeout_ms, settings.instance_timeout_ms) == (7, 8)
    assert settings.anonymous
    assert settings.plain_credentials
    assert settings.console_read_only
    assert settings.names_callers
    assert settings.console_masks == (("orders-*", "customer.email"),)
    assert settings.trusted_proxies == ("10.0.0.0/8",)
    assert settings.forwarded_header == "forwarded"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--log-format", "xml"),
        ("--listen", "here"),
        ("--http-allowed-hosts", "a b"),
        ("--http-allowed-origins", "ui"),
        ("--trusted-proxies", "10.0.0.0/99"),
        ("--console-mask", "orders"),
        ("--forwarded-header", "x-real-ip"),
        ("--max-connections", "0"),
        ("--processes", "0"),
    ],
)
def test_a_value_that_means_nothing_is_refused_and_nothing_is_started(
    started: Started, capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    assert main(["http", flag, value]) == 2
    assert capsys.readouterr().err
    assert started.places == started.supervised == []


def test_several_processes_have_a_supervisor_which_starts_them_as_workers(started: Started) -> None:
    assert main(["http", "--processes", "2", "--parent-fd", "9"]) == CODE
    assert started.supervised == [{"host": "127.0.0.1", "port": 8080, "processes": 2, "scheme": "http", "parent_fd": 9}]
    assert started.places == started.parents == []
    worker = Worker(1, 2, 5, "/run/x")
    settings = started.of("--processes", "2", "--parent-fd", "9", "--worker", worker.argument())
    assert settings.worker == worker
    assert started.places[0]["parent_fd"] == 9
    assert started.parents == [9], "a worker ends with its supervisor"
    assert len(started.supervised) == 1


def test_a_process_by_itself_ends_when_its_parent_closes_the_descriptor(started: Started) -> None:
    started.of("--parent-fd", "9")
    assert (started.places[0]["parent_fd"], started.parents) == (9, [])


def test_a_certificate_makes_it_https(started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates(tmp_path)
    path = tmp_path / "broker.pem"
    assert started.of("--tls-certificate", str(path)).tls is not None
    assert main(["http", "--tls-certificate", str(path), "--processes", "2"]) == CODE
    assert started.supervised[0]["scheme"] == "https"
    monkeypatch.setenv("FIRN_HTTP_SSL_KEYSTORE_LOCATION", str(path))
    assert started.of().tls is not None
