"""A broker starts in stages. When one fails, the parts that had begun end, the newest first."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.broker.composing import listening
from app.broker.composing.stages import Background, Stops, first_error
from app.broker.last_registration import LastRegistration
from app.broker.partitions.manifests import Manifests
from app.broker.partitions.partitions import Partitions
from app.broker.replication.high_watermark_file import HighWatermarks
from app.broker.security.broker_audit import BrokerAudit
from app.core.errors import StorageUnavailable
from app.hot.manager import LogManager
from app.machine.files import DirectoryLock, PosixFileSystem
from app.metadata.image.records import LEVEL_MAX
from app.metadata.membership.membership import Membership
from app.schemas.follower import SchemaFollower
from tests.support.broker import running_broker
from tests.support.ports import free_port

ENDS: dict[str, tuple[tuple[type, str] | None, list[str]]] = {
    "the owner of the directory": ((LogManager, "read_meta"), ["audit", "unlock"]),
    "the last registration": ((LastRegistration, "read"), ["address", "audit", "unlock"]),
    "the logs": ((LogManager, "load_all"), ["address", "audit", "unlock"]),
    "the manifests": ((Manifests, "prepare"), ["address", "audit", "unlock"]),
    "the cluster log": ((Membership, "start"), ["address", "audit", "unlock"]),
    "the new owner": (
        (LogManager, "write_meta"),
        ["address", "audit", "cluster", "partitions", "logs, not clean", "unlock"],
    ),
    "a coordinator": (
        (SchemaFollower, "__init__"),
        ["address", "audit", "cluster", "partitions", "logs, not clean", "unlock"],
    ),
    "the take-over": (
        (Partitions, "take_over_all"),
        ["address", "audit", "cluster", "partitions", "high watermarks", "logs, not clean", "unlock"],
    ),
    "nothing": (
        None,
        ["address", "audit", "cluster", "partitions", "high watermarks", "logs, clean", "unlock", "the stop is noted"],
    ),
}
"""By the stage that fails: the ends, in their order."""


class Lock:
    """The lock of a directory, whose end is noted."""

    def __init__(self, lock: DirectoryLock, ends: Ends) -> None:
        self._lock, self._ends = lock, ends

    def fileno(self) -> int:
        return self._lock.fileno()

    def close(self) -> None:
        self._ends.note("unlock")
        self._lock.close()


class Ends:
    """Notes each end once, and lets it happen."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self._patch = patch

    def note(self, end: str) -> None:
        if end not in self.seen:
            self.seen.append(end)

    def watch(self, of: type, method: str, name: Callable[..., str]) -> None:
        real = getattr(of, method)

        def watched(*args: Any, **more: Any) -> Any:
            if end := name(**more):
                self.note(end)
            return real(*args, **more)

        self._patch.setattr(of, method, watched)

    def watch_all(self) -> None:
        ends = self

        class Address(socket.socket):
            def close(self) -> None:
                ends.note("address")
                super().close()

        bind = listening.bind

        def bound(host: str, port: int) -> socket.socket:
            return Address(fileno=bind(host, port).detach())

        self._patch.setattr(listening, "bind", bound)
        lock = PosixFileSystem.lock

        def locked(fs: PosixFileSystem, path: str) -> DirectoryLock:
            return Lock(lock(fs, path), ends)

        self._patch.setattr(PosixFileSystem, "lock", locked)
        self.watch(BrokerAudit, "close", lambda: "audit")
        self.watch(Membership, "leave", lambda: "cluster")
        self.watch(Partitions, "leave", lambda: "partitions")
        self.watch(HighWatermarks, "write", lambda: "high watermarks")
        self.watch(LogManager, "close", lambda *, clean: "logs, clean" if clean else "logs, not clean")
        self.watch(LastRegistration, "write", lambda *, clean: "the stop is noted" if clean else "")


@pytest.mark.parametrize("failing", ENDS)
async def test_the_parts_that_have_begun_end_in_reverse_when_a_stage_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    fails, expected = ENDS[failing]
    ends = Ends(monkeypatch)
    ends.watch_all()
    settings = {"new_level": LEVEL_MAX, "firn_audit_log_path": str(tmp_path / "audit")}
    if fails is None:
        async with running_broker(tmp_path, **settings):
            ends.seen.clear()
    else:

        def fail(*_: Any, **__: Any) -> Any:
            raise StorageUnavailable("It fails here.")

        monkeypatch.setattr(*fails, fail)
        with pytest.raises(StorageUnavailable, match="It fails here"):
            async with running_broker(tmp_path, **settings):
                pass
    assert ends.seen == expected


async def test_an_address_in_use_leaves_the_addresses_before_it_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends(monkeypatch)
    ends.watch_all()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Exception, match="Cannot listen on"):
        async with running_broker(tmp_path, listen_port=taken.getsockname()[1]):
            pass
    assert ends.seen == ["unlock"]


async def test_a_broker_whose_take_over_fails_does_not_listen_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients would find an address that accepts connections and answers nothing."""
    port = free_port()

    async def fail(*_: Any, **__: Any) -> None:
        socket.create_connection(("127.0.0.1", port)).close()
        raise StorageUnavailable("It fails here.")

    monkeypatch.setattr(Partitions, "take_over_all", fail)
    with pytest.raises(StorageUnavailable, match="It fails here"):
        async with running_broker(tmp_path, new_level=LEVEL_MAX, listen_port=port):
            pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def stop_of(name: str, stopped: list[str], *, fails: bool = False) -> Callable[[], Any]:
    async def stop() -> None:
        stopped.append(name)
        if fails:
            raise StorageUnavailable(f"{name} fails.")

    return stop


async def test_the_newest_part_ends_first_and_each_ends_once() -> None:
    stops, stopped = Stops(), list[str]()
    for name in ("logs", "audit", "addresses"):
        stops.begun(stop_of(name, stopped))
    await stops.stop()
    await stops.stop()
    assert stopped == ["addresses", "audit", "logs"]


async def test_an_end_that_fails_leaves_the_earlier_parts_as_they_are() -> None:
    stops, stopped = Stops(), list[str]()
    for name in ("logs", "partitions", "addresses"):
        stops.begun(stop_of(name, stopped, fails=name == "partitions"))
    with pytest.raises(StorageUnavailable, match="partitions fails"):
        await stops.stop()
    assert stopped == ["addresses", "partitions"]


async def test_parts_begin_in_order_and_end_together() -> None:
    seen: list[str] = []

    def run_of(name: str) -> Callable[[], Any]:
        async def run() -> None:
            seen.append(f"{name} begins")
            try:
                await asyncio.Event().wait()
            finally:
                seen.append(f"{name} ends")

        return run

    async with Background() as background:
        background.start_all([run_of("logs"), run_of("groups")])
        await asyncio.sleep(0)
        background.cancel()
    assert seen == ["logs begins", "groups begins", "logs ends", "groups ends"]


async def test_a_part_that_fails_ends_all_others() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("it")

    with pytest.raises(BaseExceptionGroup) as failed:
        async with Background() as background:
            background.start_all([waits, stop_of("tier", [], fails=True)])
    assert str(first_error(failed.value)) == "tier fails."
    assert ended == ["it"]
