"""The address of HTTP is looked at before a broker says that it is ready."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.broker.start.http_address import HTTP_MODULE, WAIT_S, check_http_address, may_end
from app.core.errors import ConfigError
from app.machine.listeners import ListeningProcess
from tests.support.virtual_loop import VirtualLoop, run_virtual

HTTP = ("python", "-m", HTTP_MODULE)
ORPHAN = ListeningProcess(1, HTTP, ())
SERVED = ListeningProcess(2, HTTP, ("firn", "serve"))
OTHER = ListeningProcess(3, ("/usr/sbin/nginx",), ("init",))


@contextmanager
def taken() -> Iterator[tuple[str, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}", listening


def test_only_the_http_process_of_a_killed_broker_is_waited_for() -> None:
    assert may_end([])
    assert may_end([ORPHAN])
    assert not may_end([SERVED])
    assert not may_end([OTHER])
    assert not may_end([ORPHAN, OTHER])


@pytest.mark.parametrize("seen", [[ORPHAN], []], ids=["seen", "unseen"])
def test_a_start_goes_on_once_the_http_process_of_a_killed_broker_has_ended(seen: list[ListeningProcess]) -> None:
    looks = 0

    async def start(loop: VirtualLoop) -> None:
        nonlocal looks
        with taken() as (address, listening):

            def holders_of(port: int) -> list[ListeningProcess]:
                nonlocal looks
                assert port == listening.getsockname()[1]
                looks += 1
                if looks == 3:
                    listening.close()
                return seen

            await check_http_address(address, holders_of=holders_of)

    run_virtual(start)
    assert looks == 3


@pytest.mark.parametrize("holder", [SERVED, OTHER], ids=["another broker", "another program"])
def test_an_address_of_others_is_refused_at_once_with_their_name(holder: ListeningProcess) -> None:
    async def start(loop: VirtualLoop) -> float:
        began_s = loop.time()
        with (
            taken() as (address, _),
            pytest.raises(ConfigError, match=f"Address already in use by process {holder.process_id} "),
        ):
            await check_http_address(address, holders_of=lambda port: [holder])
        return loop.time() - began_s

    assert run_virtual(start) == 0


def test_an_http_process_that_does_not_end_is_waited_for_only_so_long() -> None:
    async def start(loop: VirtualLoop) -> float:
        began_s = loop.time()
        with taken() as (address, _), pytest.raises(ConfigError, match="free the address"):
            await check_http_address(address, holders_of=lambda port: [ORPHAN])
        return loop.time() - began_s

    assert run_virtual(start) == pytest.approx(WAIT_S)


def test_an_address_that_is_not_of_this_machine_is_refused_at_once() -> None:
    async def start(loop: VirtualLoop) -> None:
        with pytest.raises(ConfigError, match=r"Cannot listen on 192\.0\.2\.1:1 for HTTP"):
            await check_http_address("192.0.2.1:1", holders_of=lambda port: pytest.fail("nobody holds it"))

    run_virtual(start)


def test_an_address_in_use_names_the_process_that_listens() -> None:
    async def start(loop: VirtualLoop) -> None:
        with taken() as (address, _), pytest.raises(ConfigError, match=f"by process {os.getpid()} "):
            await check_http_address(address)

    run_virtual(start)
