"""``firn doctor``: whether a broker can run on this machine and this store, and how to mend each fault.

Tests: ``tests/cli/test_commands.py``, ``tests/cli/test_store.py``.
"""

from __future__ import annotations

import os
import random
import resource
import socket
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.cli.output import bytes_text, count_text, print_json
from app.cli.session import Json, client_dial, run_async
from app.configs import Durability
from app.core.errors import FirnError
from app.core.limits import GIB

if TYPE_CHECKING:
    from app.broker.start.running import RunningBroker
    from app.configs import BrokerConfig
    from app.metadata.image.image import ClusterImage
    from app.metadata.view.wal_store import StoreMarker
    from app.objectstore.api import ObjectStore
    from app.objectstore.check import CheckResult
    from app.settings import Address, Review

DESCRIPTORS_WANTED: Final = 8_192
"""Log files share descriptors, so most descriptors are for connections."""
FREE_BYTES_WANTED: Final = 10 * GIB
KERNEL_WANTED: Final = (4, 14)
_HEADINGS: Final = {
    "effective": "Settings that take effect",
    "lowered": "Settings that ask for more replicas than there are brokers",
    "no meaning": "Settings of Kafka that mean nothing here",
    "refused": "Settings that are refused (see below)",
}
BROKER_MS: Final = 5_000
"""How long a running broker may take to respond."""
PARTITIONS_AT_ONCE: Final = 64
"""Partitions checked at the same time. Each waits for a few requests to the store."""


def doctor(
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", "-d", metavar="DIR", help="The broker's data directory.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", "-s", metavar="URL", help="Object store: file:///path or s3://bucket/prefix."),
    ] = None,
    wal_store: Annotated[
        str | None,
        typer.Option("--wal-store", metavar="URL", help="Store of the write-ahead logs, if they have their own."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", envvar="FIRN_CONFIG", help="The broker's settings: a TOML file, or Kafka's .properties."
        ),
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Address for the Kafka protocol.")
    ] = None,
    http: Annotated[str | None, typer.Option("--http", metavar="HOST:PORT|off", help="Address for HTTP.")] = None,
    without_partitions: Annotated[
        bool,
        typer.Option(
            "--without-partitions",
            help="Skip the check of every partition in the store. A starting broker makes this check itself, and takes only "
            "the partitions offline that it cannot lead.",
        ),
    ] = False,
    as_json: Json = False,
) -> int:
    """Check settings, machine, disk, ports and object store, and say how to fix each problem.

    Pass the same flags as to `firn serve`, to check the settings that the broker will use. With --config, each setting is
    listed with its outcome. Disk, ports and store are checked only if no setting is refused. The checks leave nothing behind.
    """
    from app.broker.start.running import find_running
    from app.settings import resolve, review, sources_of

    flags = {
        "--data-dir": data_dir,
        "--store": store,
        "--wal-store": wal_store,
        "--listen": listen,
        "--http": http,
    }
    sources = sources_of(config_path=config, environment=os.environ, flags=flags)
    reviewed = review(sources)
    if reviewed.settings is None and config is None:
        resolve(sources)
    results = [*settings_checks(reviewed), *machine_checks()]
    running = None
    if reviewed.settings is not None:
        from app.broker.start.process import may_create_store
        from app.machine.files import PosixFileSystem

        broker = reviewed.settings.broker
        running = find_running(broker.data_dir)
        results += broker_checks(running)
        results += disk_checks(Path(broker.data_dir), broker.firn_log_dir_free_bytes_min, running)
        results += port_checks(broker, running)
        in_log = broker.firn_ephemeral or broker.topic_defaults.firn_durability is Durability.OBJECT
        results += run_async(
            lambda: store_checks(
                broker.store_url,
                partitions=not without_partitions,
                write_ahead=in_log and not broker.wal_store_url,
                wal_url=broker.wal_store_url,
                create=may_create_store(PosixFileSystem(), broker),
            )
        )
    failed = [result for result in results if not result.passed]
    if as_json:
        print_json(
            {
                "passed": not failed,
                "checks": [
                    {"name": result.name, "passed": result.passed, "detail": result.detail, "mend": result.mend}
                    for result in results
                ],
                "settings": [
                    {
                        "name": entry.name,
                        "given": entry.label,
                        "value": entry.text,
                        "verdict": entry.verdict,
                        "why": entry.why,
                    }
                    for entry in reviewed.entries
                ],
            }
        )
        return 1 if failed else 0
    if config is not None:
        sys.stdout.write(settings_text(reviewed))
    width = max(len(result.name) for result in results)
    for result in results:
        sys.stdout.write(f"{'ok  ' if result.passed else 'FAIL'}  {result.name:<{width}}  {result.detail}\n")
        if not result.passed:
            sys.stdout.write(f"      {'':<{width}}  → {result.mend}\n")
    can = "A broker can run here." if running is None else f"A broker runs here: process {running.process_id}."
    verdict = f"{count_text(len(failed), 'check')} failed." if failed else can
    sys.stdout.write(f"\n{verdict}\n")
    return 1 if failed else 0


def settings_checks(reviewed: Review) -> Iterable[CheckResult]:
    """Every refused setting, or one line with the numbers of settings."""
    from app.objectstore.check import CheckResult
    from app.settings import Verdict

    refused = [entry for entry in reviewed.entries if entry.verdict is Verdict.REFUSED]
    for entry in refused:
        yield CheckResult("settings", False, entry.why, "change or remove this setting")
    if not refused and reviewed.entries:
        counts = ", ".join(
            f"{number} {verdict.value}"
            for verdict in Verdict
            if (number := sum(entry.verdict is verdict for entry in reviewed.entries))
        )
        yield CheckResult("settings", True, counts)


def settings_text(reviewed: Review) -> str:
    """Every given setting and its effect, for people."""
    from app.settings import Verdict

    lines = []
    for verdict in Verdict:
        entries = [entry for entry in reviewed.entries if entry.verdict is verdict and entry.name]
        if not entries:
            continue
        lines.append(f"{_HEADINGS[verdict.value]}:")
        for entry in sorted(entries):
            value = "(secret)" if entry.text is None else entry.text
            lines.append(f"  {entry.name}={value}")
            if entry.why and verdict is not Verdict.REFUSED:
                lines.append(f"      {entry.why}")
        lines.append("")
    return "\n".join([*lines, ""]) if lines else ""


def machine_checks() -> Iterable[CheckResult]:
    """The process's limits and the kernel."""
    from app.objectstore.check import CheckResult

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = hard if hard != resource.RLIM_INFINITY else DESCRIPTORS_WANTED
    yield CheckResult(
        "descriptors",
        limit >= DESCRIPTORS_WANTED,
        f"up to {count_text(limit)} files and connections at a time",
        f"raise the limit to {DESCRIPTORS_WANTED:,}: LimitNOFILE= of a systemd unit, or `ulimit -Hn {DESCRIPTORS_WANTED}` as root",
    )
    release = os.uname().release
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    yield CheckResult(
        "kernel",
        numbers >= KERNEL_WANTED,
        f"Linux {release}",
        "upgrade to Linux 4.14: older kernels lack reads that do not wait (RWF_NOWAIT), so every read needs a thread",
    )


def broker_checks(running: RunningBroker | None) -> Iterable[CheckResult]:
    """Whether the running broker responds, and whether it drains."""
    from app.client.connection import open_connection
    from app.objectstore.check import CheckResult
    from app.settings import parse_address
    from app.wire.apikeys import ApiKey
    from app.wire.private import DrainRequest, DrainResponse, pack, unpack

    if running is None or not running.local:
        return
    address = parse_address(running.local, what="the broker's note")

    async def ask() -> DrainResponse:
        connection = await open_connection(
            address.host, address.port, client_id="firn-doctor", timeout_ms=BROKER_MS, dial=client_dial()
        )
        try:
            answer = await connection.request(ApiKey.FIRN_DRAIN, pack(DrainRequest("status")), timeout_ms=BROKER_MS)
            return unpack(DrainResponse, answer)
        finally:
            await connection.close()

    try:
        answer = run_async(ask)
    except FirnError as error:
        yield CheckResult(
            "broker", False, str(error), "read the broker's log; if the broker hangs, stop it and start it again"
        )
        return
    left = f"; on its disk only: {bytes_text(answer.left_bytes)} of {count_text(answer.left_partitions, 'partition')}"
    states = {
        "serving": "accepts writes",
        "draining": "drains and refuses writes",
        "drained": "has drained and stops",
    }
    yield CheckResult("broker", True, f"process {running.process_id} {states.get(answer.state, answer.state)}{left}")


def disk_checks(data_dir: Path, free_bytes_min: int, running: RunningBroker | None = None) -> Iterable[CheckResult]:
    """Who uses the data directory, whether its file system handles a file, a link and an fdatasync, and its free space."""
    from app.broker.start.running import is_locked
    from app.objectstore.check import CheckResult

    data_dir = data_dir.absolute()
    parent = _existing(data_dir)
    if running is None and is_locked(data_dir):
        yield CheckResult(
            "data directory",
            False,
            f"{data_dir} is in use by a process that this command cannot see",
            "stop the process, which may be in another container, or name another directory",
        )
        return
    shown = str(data_dir) if parent == data_dir else f"{data_dir} (will be created in {parent})"
    try:
        with tempfile.TemporaryDirectory(prefix=".firn-doctor-", dir=parent) as place:
            _try_files(Path(place))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        yield CheckResult(
            "data directory",
            False,
            f"{shown}: {reason}",
            f"make {parent} writable for this user, or name another directory",
        )
        return
    if running is not None:
        yield CheckResult(
            "data directory", True, f"{shown} is in use by the running broker, process {running.process_id}"
        )
    else:
        yield CheckResult("data directory", True, f"{shown} is free, and can be written, synced and locked")
    status = os.statvfs(parent)
    free = status.f_bavail * status.f_frsize
    yield CheckResult(
        "disk space",
        free >= max(free_bytes_min, FREE_BYTES_WANTED),
        f"{bytes_text(free)} free",
        f"free some space: a broker needs {bytes_text(FREE_BYTES_WANTED)}, and refuses producers below "
        f"{bytes_text(free_bytes_min)}",
    )
    files_free = status.f_favail
    yield CheckResult(
        "inodes",
        status.f_files == 0 or files_free >= 100_000,
        "no limit" if status.f_files == 0 else f"{count_text(files_free)} free",
        "create a file system with more inodes: every segment has three or four files",
    )


def port_checks(broker: BrokerConfig, running: RunningBroker | None) -> Iterable[CheckResult]:
    """Whether a broker could listen on its addresses for Kafka and HTTP. ``running`` is the broker that runs now."""
    from app.configs.broker import OFF
    from app.objectstore.check import CheckResult
    from app.settings import Address, parse_address

    wanted = [("port: Kafka", Address(broker.listen_host, broker.listen_port), "--listen")]
    if broker.http_address != OFF:
        wanted.append(("port: HTTP", parse_address(broker.http_address, what="--http"), "--http"))
    for name, address, flag in wanted:
        reason = _why_not_to_listen(address)
        if reason is None:
            yield CheckResult(name, True, f"{address} is free")
        elif running is not None:
            served = running.kafka if flag == "--listen" else running.http
            yield CheckResult(
                name,
                _port(served) == str(address.port),
                f"{address} is in use; the running broker, process {running.process_id}, serves on {served or 'nothing yet'}",
                f"stop the process that uses the port, or choose another {flag}",
            )
        else:
            yield CheckResult(
                name,
                False,
                f"cannot listen on {address}: {reason}",
                f"stop the process that uses the port, or choose another {flag}",
            )


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def _why_not_to_listen(address: Address) -> str | None:
    """Why the kernel refuses to listen on an address; None if it does not refuse."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen(1)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def _try_files(place: Path) -> None:
    """Try each call that a broker needs of the file system. Raises: OSError for the first that it refuses."""
    import fcntl

    path = place / "file"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.pwrite(descriptor, b"firn", 0)
        os.fdatasync(descriptor)
        os.ftruncate(descriptor, 2)
    finally:
        os.close(descriptor)
    os.link(path, place / "link")
    os.rename(path, place / "renamed")
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    while not path.exists():
        path = path.parent
    return path


async def store_checks(
    url: str, *, partitions: bool = True, write_ahead: bool = False, wal_url: str = "", create: bool = True
) -> list[CheckResult]:
    """Check every feature of the object store that Firn needs, and every partition in it. ``write_ahead``: whether write-ahead logs
    will be in it, though there may be none yet. ``wal_url``: the store of write-ahead logs, if they have their own, which is
    checked as well. ``create``: a missing or empty directory may be a new store. Raises: ConfigError for a wrong URL."""
    from app.machine.runtime import SystemClock
    from app.metadata.image.image import ClusterImage
    from app.metadata.view.follower import MetadataFollower
    from app.objectstore.location import check_locations

    check_locations(url, wal_url)
    image = ClusterImage()

    async def look_at_main(store: ObjectStore, sound: bool) -> list[CheckResult]:
        nonlocal image
        results = await bucket_checks(store, write_ahead=write_ahead)
        if sound and partitions and all(result.passed for result in results):
            results += await partition_checks(store)
        with suppress(FirnError):  # the check of partitions says it
            image = await MetadataFollower(store, SystemClock()).cluster()
        return results if wal_url else results + wal_store_checks(image, "", None)

    async def look_at_wal(store: ObjectStore, sound: bool) -> list[CheckResult]:
        results = await bucket_checks(store, write_ahead=True)
        return results + wal_store_checks(image, wal_url, await _marker(store)) if sound else results

    found = await _checked("store", url, look_at_main, create=create)
    return found + await _checked("WAL store", wal_url, look_at_wal, uploads=False) if wal_url else found


async def _checked(
    name: str,
    url: str,
    look: Callable[[ObjectStore, bool], Awaitable[list[CheckResult]]],
    *,
    uploads: bool = True,
    create: bool = True,
) -> list[CheckResult]:
    """Check a store. ``look`` goes on; it is told whether the store has all features. ``create``: a directory may be new.

    Raises: ConfigError for a wrong URL.
    """
    from app.machine.runtime import SystemClock, ThreadPool
    from app.objectstore.check import CheckResult, check_store
    from app.objectstore.directory_work import DirectoryWork
    from app.objectstore.location import DirectoryLocation, parse_store_url
    from app.objectstore.opening import open_store

    pool = ThreadPool()
    location = parse_store_url(url)
    folder_before = isinstance(location, DirectoryLocation) and os.path.exists(location.path)
    blank = False
    try:
        with suppress(OSError):  # a folder that cannot be listed is not blank; the store says why
            blank = isinstance(location, DirectoryLocation) and DirectoryWork(location.path).is_blank()
        store = await open_store(url, pool=pool, rng=random.Random(), create=create)
        try:
            name_of_run = f"doctor-{uuid.uuid4().hex[:12]}"
            results = await check_store(store, clock=SystemClock(), name=name_of_run, uploads=uploads)
            results += await look(store, all(result.passed for result in results))
            if isinstance(location, DirectoryLocation):
                results.append(permissions_check(location.path))
        finally:
            await store.close()
    except FirnError as error:
        from app.core.errors import ConfigError

        if isinstance(error, ConfigError):
            raise
        results = [CheckResult("open", False, str(error), "fix what the store reports, and run this again")]
    finally:
        pool.close()
    if blank and isinstance(location, DirectoryLocation):
        # The checks made this folder, or folders in it. A broker that started meanwhile has filled them.
        for folder, _, _ in os.walk(location.path, topdown=False):
            with suppress(OSError):
                if not (folder_before and Path(folder) == location.path):
                    os.rmdir(folder)
    return [
        CheckResult(f"{name}: {result.name}", result.passed, result.detail, result.mend)
        for result in (CheckResult("address", True, url), *results)
    ]


def permissions_check(root: Path) -> CheckResult:
    """Whether other users of the machine can read the objects of a directory store. They may: that is no fault."""
    from app.objectstore.check import CheckResult
    from app.objectstore.directory_work import INSTANCES

    shared = root.stat().st_mode & (root / INSTANCES).stat().st_mode & 0o077
    if not shared:
        return CheckResult("permissions", True, "for the broker's user alone")
    readers = "all users of this machine" if shared & 0o007 else "the group of its files"
    return CheckResult(
        "permissions",
        True,
        f"{readers} can read the objects. If that is not meant, stop the brokers and run chmod -R go= {root}",
    )


async def _marker(store: ObjectStore) -> StoreMarker | None:
    """The marker in a store for write-ahead logs, None if it has none. Raises: StorageUnavailable, CorruptionError."""
    from app.metadata.log import layout
    from app.metadata.view.wal_store import decode_marker
    from app.objectstore.api import ObjectMissing

    try:
        return decode_marker(await store.get(layout.WAL_STORE_KEY))
    except ObjectMissing:
        return None


def wal_store_checks(image: ClusterImage, wal_url: str, marker: StoreMarker | None) -> list[CheckResult]:
    """Whether a broker with that store of write-ahead logs could join the cluster (ADR 0037, J62 to J64).

    Nothing, where there is no cluster or the store is to be the cluster's from now on. ``wal_url``: empty if it is the main store.
    """
    from app.metadata.changes.wal_store_changes import MAIN_STORE, may_change, why_not_this_store
    from app.objectstore.check import CheckResult

    name = "cluster" if wal_url else "WAL store"
    if not image.cluster_id:
        return []
    if marker is not None and marker.cluster_id != image.cluster_id:
        why = f"{wal_url} is the WAL store of cluster {marker.cluster_id}, and this is cluster {image.cluster_id}"
        return [CheckResult(name, False, why, "give each cluster a WAL store or a prefix of its own")]
    found = MAIN_STORE if marker is None else marker.store_id
    if wal_url and marker is None and image.wal_store:
        why = f"{wal_url} has no marker of a WAL store, and that of the cluster is {image.wal_store}"
        return [CheckResult(name, False, why, "mount the file system, or name the WAL store of the brokers")]
    if found == image.wal_store and (marker is not None or not wal_url):
        return [CheckResult(name, True, f"it is that of cluster {image.cluster_id}")] if wal_url else []
    if may_change(image.topics_by_name.values()):
        return []
    why, _, mend = why_not_this_store(image.wal_store, found or "without a marker").partition(": ")
    return [CheckResult(name, False, why, mend)]


async def bucket_checks(store: ObjectStore, *, write_ahead: bool) -> list[CheckResult]:
    """Whether a bucket with write-ahead logs leaves their objects alone. Of other stores, and without such logs, nothing."""
    from app.metadata.log import layout
    from app.objectstore.bucket_rules import rules_that_touch
    from app.objectstore.check import CheckResult
    from app.objectstore.metered import MeteredStore
    from app.objectstore.s3 import S3Store

    inner = store
    while isinstance(inner, MeteredStore):
        inner = inner.inner
    if not isinstance(inner, S3Store):
        return []
    try:
        if not write_ahead and not await store.list_objects(layout.WAL_PREFIX, limit=1):
            return []
        rules = await inner.bucket_rules()
    except FirnError as error:
        return [CheckResult("bucket", True, f"its versioning and lifecycle rules cannot be seen: {error}")]
    found = rules_that_touch(rules, f"{inner.location.prefix}{layout.WAL_PREFIX}")
    return [
        CheckResult(
            "versioning",
            not rules.versioned,
            "the bucket keeps versions: objects of write-ahead logs would never go"
            if rules.versioned
            else "the bucket keeps none",
            "use a bucket without versioning for topics with firn.durability=object" if rules.versioned else "",
        ),
        CheckResult(
            "lifecycle",
            not found,
            f"rules take objects of write-ahead logs away: {', '.join(found)}"
            if found
            else "no rule touches write-ahead logs",
            f"limit these rules to keys outside {inner.location.prefix}{layout.WAL_PREFIX}" if found else "",
        ),
    ]


async def partition_checks(store: ObjectStore) -> list[CheckResult]:
    """Whether a broker could lead every partition of the cluster in the store, and how to repair the others."""
    import asyncio

    from app.core.units import TopicIdPartition
    from app.machine.runtime import SystemClock
    from app.metadata.view.follower import MetadataFollower
    from app.objectstore.check import CheckResult
    from app.tiering.repair.soundness import how_to_mend, why_not_led

    follower = MetadataFollower(store, SystemClock())
    try:
        image = await follower.cluster()
    except FirnError as error:
        mend = "restore the objects under cluster/ (from older versions, or from a copy of the bucket)"
        return [CheckResult("cluster", False, str(error), mend)]
    turns = asyncio.Semaphore(PARTITIONS_AT_ONCE)

    async def look(name: str, key: TopicIdPartition) -> CheckResult | None:
        async with turns:
            why = await why_not_led(store, key, follower.manifest)
        return None if why is None else CheckResult(f"partition {name}", False, why, how_to_mend(key))

    partitions = [
        (f"{topic.name}-{one.partition_index}", TopicIdPartition(topic.topic_id, one.partition_index))
        for topic in image.topics_by_name.values()
        for one in topic.partitions
    ]
    found = [one for one in await asyncio.gather(*(look(*one) for one in partitions)) if one is not None]
    if found or not partitions:
        return found
    return [CheckResult("partitions", True, f"{count_text(len(partitions), 'partition')} can be led from the store")]
