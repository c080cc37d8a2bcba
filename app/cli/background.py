"""A broker in the background: ``firn serve --background``, ``firn wait`` and ``firn stop``."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.banner import banner, shown_listener
from app.cli.output import print_json, say
from app.cli.session import BOOTSTRAP_DEFAULT, Bootstrap, Json, client_dial, local_broker, parse_bootstrap, run_async
from app.configs.broker import OFF
from app.core.errors import BrokerUnavailable, ConflictError, FirnError, RequestRejected, clause
from app.settings import Address, parse_address

if TYPE_CHECKING:
    from app.configs import BrokerConfig

HTTP_WAIT_S: Final = 30.0
"""How long the HTTP process of a broker that serves may take to serve too."""
HTTPS: Final = "https://"
ASK_S: Final = 0.1
LOG_LINES_SHOWN: Final = 20
ANSWER_BYTES_MAX: Final = 1024


def start(config: BrokerConfig, arguments: list[str], log_file: Path | None) -> int:
    """Start ``firn serve`` with ``arguments`` in the background; return when it serves, or with its exit code if it ended.

    Raises: ConflictError if a broker runs on the data directory already; OSError.
    """
    from app.broker.start.running import find_running
    from app.machine.interpreter import python_command, python_environment

    data_dir = Path(config.data_dir).absolute()
    running = find_running(data_dir)
    if running is not None:
        where = f", Kafka {running.kafka}, HTTP {running.http}" if running.kafka else ", and is still starting"
        raise ConflictError(
            f"A broker already runs on {data_dir}: process {running.process_id}{where}."
            f" End it with {_stop_command(data_dir)}."
        )
    path = (log_file or data_dir.with_name(f"{data_dir.name}.log")).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    ready, told = os.pipe()
    with open(ready, "rb") as answer, path.open("ab") as log:
        begin = log.tell()
        try:
            process = subprocess.Popen(
                [*python_command("firn_broker", "serve", *arguments), "--ready-fd", str(told)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=python_environment(),
                pass_fds=(told,),
                start_new_session=True,
            )
        finally:
            os.close(told)
        try:
            is_ready = answer.readline() != b""
            if not is_ready:
                code = process.wait()
                return _tell_failure(path, begin, code)
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
    running = find_running(data_dir)
    if running is None:
        raise FirnError(f"The broker ended during its start; {path} says why.")
    sys.stdout.write(
        banner(
            config,
            node_id=running.node_id,
            kafka=_shown_address(config, running.kafka),
            cluster_id=running.cluster_id,
            stopped_by=_stop_command(data_dir),
            background=(running.process_id, path),
        )
    )
    sys.stdout.flush()
    if not _has_port(running.http):
        return 0
    try:
        run_async(lambda: wait_for_http(parse_address(running.http, what="--http"), HTTP_WAIT_S, https=running.https))
    except BrokerUnavailable as error:
        raise BrokerUnavailable(
            f"The broker serves Kafka, but not HTTP yet: {clause(error)}. {path} may say why."
        ) from None
    return 0


def _shown_address(config: BrokerConfig, local: str) -> str:
    """The address that the banner names; ``local`` if only the broker knows its port."""
    shown = config.served[shown_listener(config)]
    port = shown.advertised_port or shown.port
    return f"{shown.advertised_host or shown.host}:{port}" if config.listeners and port else local


def _has_port(address: str) -> bool:
    """Whether the address has a known port: not if HTTP is off, or if the kernel picks the port."""
    return not address.endswith(":0") and ":" in address


def _stop_command(data_dir: Path) -> str:
    usual = Path("firn-data").absolute() == data_dir
    return "`firn stop`" if usual else f"`firn stop --data-dir {data_dir}`"


def _tell_failure(path: Path, begin: int, code: int) -> int:
    """The last lines of a broker that did not start, and its exit code."""
    with path.open("rb") as log:
        log.seek(begin)
        lines = log.read().decode(errors="replace").splitlines()
    for line in lines[-LOG_LINES_SHOWN:]:
        say(line)
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    say(f"firn: The broker did not start ({how}). Its log is {path}.")
    return code if code > 0 else 1


def wait(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="[https://]HOST:PORT|off",
            help="Also wait until HTTP is served at this address and reaches a broker.",
        ),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", "-t", min=0, metavar="SECONDS", help="Maximum time to wait.")
    ] = 60.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing on success.")] = False,
) -> int:
    """Wait until a broker responds. Exit code 0 when one responds, 1 if none responds in time."""
    addresses = parse_bootstrap(bootstrap)
    if http == OFF:
        http = None
    https = http is not None and http.startswith(HTTPS)
    http_address = None if http is None else parse_address(http.removeprefix(HTTPS), what="--http")

    async def work() -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        await _wait_for_kafka(addresses, deadline, timeout_s)
        if http_address is not None:
            await wait_for_http(http_address, deadline - asyncio.get_running_loop().time(), https=https)

    run_async(work)
    if not quiet:
        say(f"{', '.join(map(str, addresses))} responds." if http is None else f"{bootstrap} and {http} respond.")
    return 0


async def _wait_for_kafka(addresses: tuple[Address, ...], deadline: float, timeout_s: float) -> None:
    """Raises: BrokerUnavailable with the last reason."""
    from app.client.cluster import ClusterClient

    while True:
        left_s = deadline - asyncio.get_running_loop().time()
        try:
            async with (
                asyncio.timeout(max(left_s, ASK_S)),
                ClusterClient(addresses, rng=random.Random(), client_id="firn-cli", dial=client_dial()) as cluster,
            ):
                await cluster.refresh(())
                return
        except (BrokerUnavailable, RequestRejected, TimeoutError) as error:
            if left_s <= ASK_S:
                why = str(error) or "No broker has responded."
                raise BrokerUnavailable(f"{why} Waited {timeout_s:g} s.") from None
        await asyncio.sleep(ASK_S)


async def wait_for_http(address: Address, seconds: float, *, https: bool = False) -> None:
    """Return when HTTP is served at ``address`` and reaches a broker. Raises: BrokerUnavailable with the last reason."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    scheme = "https" if https else "http"
    while True:
        try:
            async with asyncio.timeout(max(deadline - loop.time(), ASK_S)):
                status = await _get_readiness(host, address, https=https)
            if status.startswith(b"HTTP/1.1 200"):
                return
            why = f"{scheme}://{address}/readyz returns {status[9:].decode(errors='replace') or 'nothing'!r}."
        except (OSError, TimeoutError) as error:
            reason = getattr(error, "strerror", None) or "no response"
            why = f"{scheme}://{address} is not served: {reason}."
        if loop.time() >= deadline:
            raise BrokerUnavailable(why)
        await asyncio.sleep(ASK_S)


async def _get_readiness(host: str, address: Address, *, https: bool) -> bytes:
    """The first line of the response. Raises: OSError."""
    context = None
    if https:
        import ssl

        # This request carries no secret, and only the existence of a response counts. So the certificate is not verified.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(host, address.port, limit=ANSWER_BYTES_MAX, ssl=context)
    try:
        writer.write(f"GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
        return (await reader.readline()).rstrip()
    except ValueError:
        return b""  # No HTTP response has a line of that length.
    finally:
        writer.close()


def stop(
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", "-d", metavar="DIR", help="The broker's data directory. [./firn-data]")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", envvar="FIRN_CONFIG", help="The broker's settings file."),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", "-t", min=0, metavar="SECONDS", help="Maximum time to wait for the broker's end."),
    ] = 60.0,
    as_json: Json = False,
) -> int:
    """Stop the broker of a data directory in order, and return when it has ended. Exit code 1 if none runs there."""
    from app.broker.start.running import is_alive

    path, running = local_broker(data_dir, config)
    try:
        os.kill(running.process_id, signal.SIGTERM)
    except PermissionError:
        raise ConflictError(f"Process {running.process_id}, the broker of {path}, belongs to another user.") from None
    except ProcessLookupError:
        pass  # It has just ended by itself.
    deadline = time.monotonic() + timeout_s
    while is_alive(running):
        if time.monotonic() >= deadline:
            raise ConflictError(f"The broker, process {running.process_id}, is still running after {timeout_s:g} s.")
        time.sleep(ASK_S / 5)
    if as_json:
        value: dict[str, Any] = {"data_dir": str(path), "process_id": running.process_id, "stopped": True}
        print_json(value)
    else:
        say(f"Stopped the broker of {path} (process {running.process_id}).")
    return 0
