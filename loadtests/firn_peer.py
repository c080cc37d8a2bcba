"""Firn as a system under test: ``firn serve``, pinned, on the directory store or on what ``store`` names."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from loadtests.system import System, free_port, running

START_TIMEOUT_S = 60.0


def serve_command(
    directory: Path,
    port: int,
    *,
    settings: Mapping[str, str] | None = None,
    store: str | None = None,
    http: str = "off",
) -> list[str]:
    """The command line of a broker with its data and its bucket in ``directory``."""
    assignments = [part for name, value in (settings or {}).items() for part in ("--set", f"{name}={value}")]
    return [
        *(sys.executable, "-m", "app.cli", "serve", "--listen", f"127.0.0.1:{port}", "--http", http),
        *("--data-dir", str(directory / "data"), "--store", store or (directory / "bucket").resolve().as_uri()),
        *assignments,
    ]


@contextmanager
def firn_running(
    directory: Path,
    *,
    cores: str | None = None,
    settings: Mapping[str, str] | None = None,
    store: str | None = None,
    environment: Mapping[str, str] | None = None,
    http: str = "off",
    port: int | None = None,
) -> Iterator[System]:
    """Start a broker in ``directory``, on ``port`` or a free one, and end it when the block is left. Raises: SystemFailed."""
    directory.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    with running(
        "Firn",
        serve_command(directory, port, settings=settings, store=store, http=http),
        port=port,
        output=directory / "firn.out",
        logs=directory / "data",
        timeout_s=START_TIMEOUT_S,
        cores=cores,
        environment=environment,
    ) as system:
        yield system
