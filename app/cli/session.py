"""Flags that commands share, and the way from a command to a cluster.

Tests: ``tests/cli/test_away.py``, ``tests/cli/test_commands.py``.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar
from urllib.parse import unquote

import typer

from app.configs.environment import CLIENT_PREFIX
from app.core.errors import BrokerUnavailable, ConfigError, ConflictError, NotTrusted
from app.settings import Address, parse_address

if TYPE_CHECKING:
    from app.broker.start.running import RunningBroker
    from app.client.cluster import ClusterClient
    from app.client.connection import Dialer

T = TypeVar("T")

BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9092"
RETRY_BUDGET_MS: Final = 15_000
TLS_ASK_S: Final = 2.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        "--bootstrap-server",
        "--brokers",
        metavar="HOST:PORT",
        envvar="FIRN_BOOTSTRAP",
        help="Brokers to ask first, separated by commas.",
    ),
]
DataDir = Annotated[
    str | None,
    typer.Option("--data-dir", "-d", metavar="DIR", help="Data directory of a broker of this machine. [./firn-data]"),
]
Internal = Annotated[
    bool, typer.Option("--internal", help="Also show the topics in which brokers store groups and transactions.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def run_async(work: Callable[[], Awaitable[T]]) -> T:
    """Run a command's asynchronous part on an event loop of its own. Ctrl-C cancels it and raises KeyboardInterrupt."""
    import asyncio

    import uvloop

    async def begin() -> T:
        return await work()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(begin())


def local_broker(data_dir: str | None, config: Path | None, advice: str = "") -> tuple[Path, RunningBroker]:
    """A data directory of this machine, and the broker that runs on it. ``advice`` ends the error that no broker runs.

    Raises: ConfigError, ConflictError.
    """
    from app.broker.start.running import find_deleted, find_running, is_locked
    from app.settings import load

    flags: dict[str, str | None] = {"--data-dir": data_dir}
    path = Path(load(config_path=config, environment=os.environ, flags=flags).broker.data_dir).absolute()
    found = find_running(path) or find_deleted(path)
    if found is not None:
        return path, found
    if not path.is_dir():
        raise ConfigError(f"There is no folder {path}. Name the broker's data directory with --data-dir.")
    if is_locked(path):
        raise ConflictError(
            f"{path} is in use by a process that this command cannot see, perhaps in another container: run the command there."
        )
    raise ConflictError(f"No broker runs on {path}.{advice}")


def serving_broker(data_dir: str | None, config: Path | None) -> RunningBroker:
    """The broker that runs on a data directory of this machine, and serves. Raises: ConfigError, ConflictError."""
    path, found = local_broker(data_dir, config, " Start it first.")
    if not found.kafka:
        raise ConflictError(
            f"The broker of {path}, process {found.process_id}, is still starting. Try again when it serves."
        )
    return found


_client_config: list[str] = []
"""The file of ``--client-config``, if the command was given one."""


def use_client_config(path: str | None) -> None:
    """Let every connection of this process be made as a file says."""
    _client_config[:] = [path] if path else []


def client_dial() -> Dialer:
    """How commands connect to brokers: as ``--client-config`` and the environment say. Raises: ConfigError."""
    from app.client.connection import dial_tcp

    settings = client_settings()
    if not settings:
        return dial_tcp
    from app.client.security import SecureDialer, client_security

    return SecureDialer(client_security(settings))


def client_settings() -> Mapping[str, str]:
    """Settings of a client, from the file and the environment. Raises: ConfigError."""
    if not _client_config and not any(name.startswith(CLIENT_PREFIX) for name in os.environ):
        return {}
    from app.client.security import read_settings

    return read_settings(os.environ, _client_config[0] if _client_config else None)


def parse_bootstrap(text: str) -> tuple[Address, ...]:
    """Raises: ConfigError."""
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError("--bootstrap names no broker; write HOST:PORT, for example 127.0.0.1:9092.")
    return tuple(parse_address(part, what="--bootstrap", port_default=9092) for part in parts)


@asynccontextmanager
async def connected(bootstrap: str) -> AsyncIterator[ClusterClient]:
    """A client that is connected to the cluster.

    Raises: ConfigError; BrokerUnavailable, at once and with the mend, if no broker answers.
    """
    from app.client.cluster import ClusterClient

    addresses = parse_bootstrap(bootstrap)
    async with ClusterClient(
        addresses, rng=random.Random(), client_id="firn-cli", retry_budget_ms=RETRY_BUDGET_MS, dial=client_dial()
    ) as cluster:
        try:
            await cluster.any_broker()
        except BrokerUnavailable as error:
            if not client_settings():
                for address in addresses:
                    if await _speaks_tls(address):
                        raise NotTrusted(
                            f"{address} speaks TLS, and this command does not. Name a file with security.protocol=SSL or SASL_SSL,"
                            " and with the login if there is one, by --client-config."
                        ) from None
            raise BrokerUnavailable(f"{error} Start one with `firn serve`, or name another with --bootstrap.") from None
        yield cluster


async def _speaks_tls(address: Address) -> bool:
    """Whether a TLS server listens at ``address``. It closes the connection of a plain client without a word."""
    import asyncio
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # nothing is sent, so the certificate is not verified
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(TLS_ASK_S):
            _, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    except ssl.SSLError as error:
        return error.reason is not None and "ALERT" in error.reason
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


def confirmed(question: str, *, yes: bool, what: str = "") -> bool:
    """Whether the operator wants it: by ``--yes``, or as an answer. ``what``: the same without a question mark, for the error.

    Raises: ConfigError if there is no terminal to ask at.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(f"{what or question.rstrip('?')}: add --yes to confirm.")
    return typer.confirm(question, err=True)


def parse_assignments(texts: Iterable[str], flag: str) -> dict[str, str]:
    """``name=value`` texts. Raises: ConfigError."""
    out: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{flag} {text!r} is not of the form name=value, for example retention.ms=86400000.")
        out[name.strip()] = value
    return out


def local_path(text: str | Path) -> Path:
    """A folder or file of this machine, written as a path or as ``file:///…``. Raises: ConfigError for another address."""
    scheme, separator, rest = str(text).partition("://")
    if not separator:
        return Path(text)
    if scheme != "file" or not rest.startswith("/"):
        raise ConfigError(
            f"{str(text)!r} is not a path: name a folder or file of this machine, as in /path or file:///path."
        )
    return Path(unquote(rest))


def missing_folder(folder: Path, given_by: str | None) -> ConfigError:
    """There is no object store in ``folder``; ``given_by`` is the flag, variable or file that names it, None for the default."""
    if given_by is None:
        return ConfigError(f"There is no folder {folder}, the default object store: name your store with --store.")
    return ConfigError(f"There is no folder {folder}, which {given_by} names: check the path.")


def parse_moment(text: str, flag: str, now_ms: int) -> int:
    """Milliseconds since 1970 of ``2013-07-01``, ``2013-07-01T12:00:00Z``, ``@1372636800000`` or ``-15min`` (ago).

    Without a zone it is UTC. Raises: ConfigError.
    """
    if match := re.fullmatch(r"@(\d{1,15})", text):
        return int(match[1])
    if match := re.fullmatch(r"-(\d{1,9})(ms|s|min|h|d)", text):
        unit_ms = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}[match[2]]
        return max(0, now_ms - int(match[1]) * unit_ms)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{flag} {text!r} is not a time; write 2013-07-01, 2013-07-01T12:00:00Z, @1372636800000 (milliseconds) or -15min."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, (moment - _EPOCH) // timedelta(milliseconds=1))
