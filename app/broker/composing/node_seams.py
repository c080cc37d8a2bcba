"""The surroundings of a node: the implementations of its seams."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from app.broker.partitions.tier_views import ManifestLink
from app.broker.replication.followers import FetchLink
from app.core.loop_time import loop_time_s
from app.core.metrics import Sample
from app.core.seams import BlockingPool, BootClock, Clock
from app.exactly_once.record_fates import RequestsLink
from app.groups.share.share_coordinator import CoordinatorLink
from app.hot.cleaning.work import CleanerWork
from app.machine.files import DirectoryLock, FileSystem
from app.metadata.log.numbered_log import LogTimings
from app.metadata.peers.control import ControlLink
from app.metadata.peers.liveness import Liveness
from app.metadata.peers.place import Places
from app.metadata.peers.pulses import StartPulses
from app.objectstore.api import ObjectStore
from app.schemas.registry_reads import SchemasLink
from app.tiering.store.store_work import StoreWork
from app.tiering.upload.copy_holds import HoldLink
from app.transactions.link import TransactionLink

if TYPE_CHECKING:
    from app.broker.quota_tokens import Tokens


class NodeLink(
    ControlLink,
    FetchLink,
    ManifestLink,
    CoordinatorLink,
    TransactionLink,
    HoldLink,
    SchemasLink,
    RequestsLink,
    Protocol,
):
    """Reaches the other brokers of a cluster: as members, as leaders, and as coordinators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeams:
    """The surroundings of a node: the implementations of its seams."""

    clock: Clock
    rng: random.Random
    pool: BlockingPool
    fs: FileSystem
    store: ObjectStore
    work: StoreWork
    log_line: Callable[[str], None]
    lock: DirectoryLock | None = None
    """The lock of the data directory, if it is already taken."""
    descriptors_max: int = 1024
    """Limit of open files and sockets together."""
    liveness: Liveness | None = None
    """The heartbeats of a broker that is alone. None: they are objects of ``store``, as they always are for several brokers."""
    timings: LogTimings | None = None
    store_samples: Callable[[], Awaitable[Sequence[Sample]]] | None = None
    """Requests the metrics of the store process."""
    store_trouble: Callable[[], str] | None = None
    """As ``Context.store_trouble``."""
    boot_s: BootClock = loop_time_s
    """A clock that also runs while this process is stopped or the machine is suspended."""
    places: Places | None = None
    """Reaches other brokers. With None, none is asked or notified."""
    elapsed_s: Callable[[], float] = loop_time_s
    """Seconds since an arbitrary moment, precise enough to time a callback."""
    new_cleaner_work: Callable[[], CleanerWork] | None = None
    """With None, logs are compacted slowly in ``pool``."""
    new_link: Callable[[], NodeLink] | None = None
    """Reaches the other brokers of a cluster. With None, this broker is always alone."""
    new_tokens: Callable[[Callable[[], str]], Tokens] | None = None
    """Where limits of the whole cluster are leased from (``firn.quota.scope``); told how to name the cluster."""
    start_pulses: StartPulses | None = None
    """Starts the pulses of this broker in a thread of their own (ADR 0023, L6). With None, this broker sends no pulses."""
    boot_id: str = ""
    """The boot of this machine; empty if unknown."""
    new_level: int = 0
    """The level of a cluster that this broker creates (ADR 0023)."""
