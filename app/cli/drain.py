"""``firn drain``: upload all acknowledged records to the object store before a broker loses its disk."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.output import bytes_text, count_text, print_json, print_table, say
from app.cli.session import DataDir, Json, client_dial, run_async, serving_broker
from app.core.errors import BrokerUnavailable, ConfigError, ConflictError
from app.settings import Address, parse_address

if TYPE_CHECKING:
    from app.broker.start.running import RunningBroker
    from app.client.connection import KafkaConnection
    from app.wire.private import DrainResponse

NOT_WHOLE: Final = 3
"""Exit code if records of tiered topics may be on the broker's disk only."""
DRAINED: Final = "drained"
DRAINING: Final = "draining"
ASK_S: Final = 0.2
TELL_S: Final = 1.0
"""Time between two lines of progress."""
CONNECT_AGAIN_S: Final = 5.0
"""How long the command tries to reconnect: shorter than a drained broker waits for the acknowledgement."""
END_WAIT_S: Final = 60.0
"""How long a drained broker may take to end."""
REQUEST_MS: Final = 10_000


def drain(
    data_dir: DataDir = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", envvar="FIRN_CONFIG", help="The broker's settings file."),
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server", "--bootstrap", "-b", metavar="HOST:PORT", help="Address of the broker itself."
        ),
    ] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", "-t", min=0, metavar="SECONDS", help="End with code 3 after this time. [no limit]"),
    ] = None,
    cancel: Annotated[
        bool,
        typer.Option(
            "--cancel", help="Cancel the drain: the broker accepts writes again, unless it has already drained."
        ),
    ] = False,
    as_json: Json = False,
) -> int:
    """Stop a broker whose disk will be lost: refuse writes, upload all records that are only on the disk, stop.

    Exit code 0: every acknowledged record of tiered topics is in the object store, and the broker stops. Exit code 3: the drain did
    not finish in time, or the broker ended before. The command then prints how much is left; a broker that still runs continues to
    drain. Untiered topics, compacted topics, committed offsets and transactional ids stay on the disk only; the command lists them.
    """
    running = None
    if bootstrap is not None:
        if data_dir is not None:
            raise ConfigError("--data-dir and --bootstrap-server both name a broker: use only one of them.")
        address = parse_address(bootstrap, what="--bootstrap-server", port_default=9092)
    else:
        running = serving_broker(data_dir, config)
        address = parse_address(running.local or running.kafka, what="the broker's note")
    if cancel:
        return _cancel(address, as_json)
    work = _Work(address, timeout_s)
    try:
        last = run_async(work.drain)
    except KeyboardInterrupt:
        say("The broker continues to drain. To cancel the drain, run `firn drain --cancel`.")
        raise
    drained = last is not None and last.state == DRAINED
    ended = drained and _wait_for_end(address, running)
    _print(last, drained=drained, ended=ended, why=work.why, as_json=as_json)
    return 0 if drained else NOT_WHOLE


class _Work:
    """One drain, from its request to its end."""

    def __init__(self, address: Address, timeout_s: float | None) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._connection: KafkaConnection | None = None
        self.why = ""
        """Why the command ends although the broker has not drained."""

    async def drain(self) -> DrainResponse | None:
        """The last response; it says whether the broker has drained. Raises: BrokerUnavailable if it never responds."""
        loop = asyncio.get_running_loop()
        began_s = told_s = loop.time()
        self._connection = await _connect(self._address)
        last = answer = await self._ask("begin")
        try:
            while answer.state == DRAINING:
                now_s = loop.time()
                if self._timeout_s is not None and now_s - began_s >= self._timeout_s:
                    self.why = f"The broker has not drained within {self._timeout_s:g} s, and continues to drain."
                    return answer
                if now_s - told_s >= TELL_S:
                    say(_progress(answer))
                    told_s = now_s
                await asyncio.sleep(ASK_S)
                last, answer = answer, await self._ask_again()
            if answer.state == DRAINED:
                with suppress(BrokerUnavailable):  # It stops by itself, a little later.
                    await self._ask("stop")
                return answer
            self.why = "The drain was cancelled, or the broker was restarted: it accepts writes."
            return answer
        except BrokerUnavailable as error:
            self.why = f"The broker ended before it reported that it had drained: {error}"
            return last
        finally:
            if self._connection is not None:
                await self._connection.close()

    async def _ask(self, step: str) -> DrainResponse:
        assert self._connection is not None
        return await _step(self._connection, step)

    async def _ask_again(self) -> DrainResponse:
        """The progress. A lost connection is opened again for a while. Raises: BrokerUnavailable."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + CONNECT_AGAIN_S
        while True:
            try:
                if self._connection is None:
                    self._connection = await _connect(self._address)
                return await self._ask("status")
            except BrokerUnavailable:
                if self._connection is not None:
                    await self._connection.close()
                    self._connection = None
                if loop.time() >= deadline_s:
                    raise
            await asyncio.sleep(ASK_S)


async def _connect(address: Address) -> KafkaConnection:
    """Raises: BrokerUnavailable."""
    from app.client.connection import open_connection

    return await open_connection(
        address.host, address.port, client_id="firn-drain", timeout_ms=REQUEST_MS, dial=client_dial()
    )


async def _step(connection: KafkaConnection, step: str) -> DrainResponse:
    """Raises: BrokerUnavailable."""
    from app.wire.apikeys import ApiKey
    from app.wire.private import DrainRequest, DrainResponse, pack, unpack

    answer = await connection.request(ApiKey.FIRN_DRAIN, pack(DrainRequest(step)), timeout_ms=REQUEST_MS)
    return unpack(DrainResponse, answer)


def _cancel(address: Address, as_json: bool) -> int:
    async def work() -> DrainResponse:
        connection = await _connect(address)
        try:
            return await _step(connection, "take-back")
        finally:
            await connection.close()

    answer = run_async(work)
    if answer.error:
        raise ConflictError(answer.error)
    if as_json:
        print_json({"state": answer.state})
    else:
        say("The broker accepts writes.")
    return 0


def _wait_for_end(address: Address, running: RunningBroker | None) -> bool:
    """Whether the broker has ended within ``END_WAIT_S``."""
    from app.broker.start.running import is_alive

    async def answers() -> bool:
        try:
            connection = await _connect(address)
        except BrokerUnavailable:
            return False
        await connection.close()
        return True

    deadline_s = time.monotonic() + END_WAIT_S
    while is_alive(running) if running is not None else run_async(answers):
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(ASK_S / 4)
    return True


def _progress(now: DrainResponse) -> str:
    rate = f", {bytes_text(now.bytes_per_second)}/s" if now.bytes_per_second else ""
    left = f", about {now.seconds_left:.0f} s left" if now.seconds_left >= 0 else ""
    open_ones = f", {count_text(now.open_transactions, 'open transaction')}" if now.open_transactions else ""
    return f"{bytes_text(now.left_bytes)} of {count_text(now.left_partitions, 'partition')} to upload{rate}{left}{open_ones}"


def _print(last: DrainResponse | None, *, drained: bool, ended: bool, why: str, as_json: bool) -> None:
    assert last is not None
    if as_json:
        value: dict[str, Any] = {"drained": drained, "ended": ended, "why": why}
        value |= {name: getattr(last, name) for name in last.__struct_fields__ if name not in ("left", "kept", "error")}
        for name in ("left", "kept"):
            value[name] = [
                {field: getattr(one, field) for field in one.__struct_fields__} for one in getattr(last, name)
            ]
        print_json(value)
        return
    if drained:
        say(
            f"Drained in {last.elapsed_ms / 1000:.1f} s, {bytes_text(last.uploaded_bytes)} uploaded: every acknowledged record of"
            " tiered topics is in the object store."
        )
        if not ended:
            say(f"The broker is still running after {END_WAIT_S:g} s.")
    else:
        say(why)
        say(
            f"On the broker's disk only: {bytes_text(last.left_bytes)} of {count_text(last.left_partitions, 'partition')}."
        )
        print_table(
            ("PARTITION", ">IN STORE UP TO", ">END", ">BYTES", "~WAITS FOR"),
            [
                (
                    f"{one.topic}-{one.partition}",
                    count_text(one.covered_end_offset) if one.covered_end_offset >= 0 else "unknown",
                    count_text(one.log_end_offset) if one.log_end_offset >= 0 else "unknown",
                    bytes_text(one.bytes),
                    one.why,
                )
                for one in last.left
            ],
        )
        if last.left_partitions > len(last.left):
            say(f"… and {count_text(last.left_partitions - len(last.left))} more.")
    _tell_kept(last)


def _tell_kept(last: DrainResponse) -> None:
    from app.broker.partitions.lost_directory import COORDINATED

    if last.kept:
        say("These topics are never uploaded. Their records stay on the broker's disk only:")
    for one in last.kept:
        means = f": {COORDINATED[one.topic]}" if one.topic in COORDINATED else ""
        say(f"  {one.topic} ({one.why}; {bytes_text(one.bytes)} in {count_text(one.partitions, 'partition')}){means}")
