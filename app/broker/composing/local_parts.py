"""The parts of a node that are made without I/O, and its data directory.

Tests: ``tests/broker/test_node.py``, ``tests/broker/test_replacing.py``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from app.broker.composing.node_seams import NodeSeams
from app.broker.last_registration import LastRegistration, LastRun
from app.broker.partitions.manifest_copies import ManifestCopies
from app.configs import BrokerConfig
from app.core.errors import ConfigError
from app.core.faults import Faults, Limited
from app.core.log_events import Event
from app.core.metrics import Registry
from app.core.units import BrokerId, TopicIdPartition
from app.hot.checkpoints import MetaProperties
from app.hot.manager import LogManager
from app.hot.unreadable import UnreadableBatch, UnreadableBatches
from app.machine.files import storage_error
from app.tiering.read.chunk_cache import ChunkCache
from app.tiering.read.reader import RemoteReader
from app.tiering.upload.remote_log_manager import RemoteLogManager

OWN_DIRECTORY: Final = ".firn"
"""Folder in the data directory for files that Kafka does not have."""
KAFKA_METADATA_DIRECTORY: Final = "__cluster_metadata-0"
"""Every data directory of Apache Kafka has it, and none of Firn."""
LOG_DESCRIPTORS_MAX: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParts:
    """The parts that every other part may use."""

    logs: LogManager
    manifest_copies: ManifestCopies
    remote_log_manager: RemoteLogManager
    chunk_cache: ChunkCache
    remote_reader: RemoteReader


def new_local_parts(
    config: BrokerConfig,
    around: NodeSeams,
    registry: Registry,
    faults: Faults,
    *,
    on_offline: Callable[[str], None],
    on_unreadable: Callable[[TopicIdPartition, UnreadableBatch], None],
) -> LocalParts:
    """Make the parts. ``on_offline`` hears the reason when the log directory goes offline, ``on_unreadable`` of damaged batches."""
    logs = LogManager(
        config.data_dir,
        around.fs,
        around.pool,
        around.clock,
        around.rng,
        descriptors_max=min(LOG_DESCRIPTORS_MAX, max(64, around.descriptors_max // 2)),
        registry=registry,
        producer_expiration_ms=config.producer_id_expiration_ms,
        lock=around.lock,
        faults=faults,
    )
    logs.log_directory.on_offline = on_offline
    manifest_copies = ManifestCopies(
        f"{config.data_dir}/{OWN_DIRECTORY}",
        fs=around.fs,
        pool=around.pool,
        log_line=around.log_line,
        faults=faults,
    )
    remote_log_manager = RemoteLogManager(
        around.store,
        around.work,
        clock=around.clock,
        rng=around.rng,
        registry=registry,
        broker_id=BrokerId(config.node_id),
        interval_ms=min(config.remote_log_manager_task_interval_ms, config.log_retention_check_interval_ms),
        retention_interval_ms=config.log_retention_check_interval_ms,
        log_line=around.log_line,
        faults=faults,
        on_manifest_change=manifest_copies.note_change,
    )
    chunk_cache = ChunkCache(
        around.work,
        f"{config.data_dir}/{OWN_DIRECTORY}/chunks",
        config.firn_chunk_cache_bytes,
        fs=around.fs,
        pool=around.pool,
        descriptors=logs.log_directory.descriptors,
        registry=registry,
        faults=faults,
    )
    remote_reader = RemoteReader(
        around.work,
        chunk_cache,
        remote_log_manager.served_manifest_of,
        pool=around.pool,
        registry=registry,
        read_ahead_bytes=config.firn_read_ahead_bytes,
        on_unreadable=on_unreadable,
        faults=faults,
    )
    logs.log_directory.unreadable = UnreadableBatches(Limited(around.log_line))
    return LocalParts(
        logs=logs,
        manifest_copies=manifest_copies,
        remote_log_manager=remote_log_manager,
        chunk_cache=chunk_cache,
        remote_reader=remote_reader,
    )


def claim(config: BrokerConfig, around: NodeSeams, logs: LogManager) -> MetaProperties | None:
    """Take the lock of the data directory, and check its owner. Returns: its owner; None if it is new.

    Raises: ConfigError (of another node, or of Apache Kafka), ConflictError (in use), CorruptionError, StorageUnavailable.
    """
    logs.lock()
    if around.fs.exists(f"{config.data_dir}/{KAFKA_METADATA_DIRECTORY}"):
        raise ConfigError(
            f"The data directory {config.data_dir} belongs to Apache Kafka: Firn cannot read its logs, and would truncate "
            "them. Name an empty directory (log.dirs, --data-dir), and copy topics from a running Kafka, for example with "
            "MirrorMaker."
        )
    meta = logs.read_meta()
    if meta is not None and meta.node_id != config.node_id:
        raise ConfigError(
            f"The data directory {config.data_dir} belongs to node {meta.node_id}, but this is node {config.node_id}: "
            f"use --node-id {meta.node_id}, or another --data-dir."
        )
    return meta


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDirectory:
    """The claimed data directory, as the last run has left it."""

    meta: MetaProperties | None
    """Its owner; None if it is new."""
    directory_id: uuid.UUID
    last_run: LastRun
    runs: RunNotes

    @property
    def is_new(self) -> bool:
        return self.meta is None


async def open_directory(config: BrokerConfig, around: NodeSeams, meta: MetaProperties | None) -> DataDirectory:
    """Read the last registration from a claimed data directory. A new directory gets an id."""
    directory_id = meta.directory_id if meta is not None else uuid.UUID(bytes=around.rng.randbytes(16), version=4)
    file = LastRegistration(around.fs, f"{config.data_dir}/{OWN_DIRECTORY}")
    last_run = await around.pool.run(file.read)
    return DataDirectory(meta=meta, directory_id=directory_id, last_run=last_run, runs=RunNotes(file, around))


class RunNotes:
    """Notes in the data directory under which broker epoch it was served (``LastRuns``)."""

    def __init__(self, file: LastRegistration, around: NodeSeams) -> None:
        self._file = file
        self._pool = around.pool
        self._boot_id = around.boot_id
        self._log_line = around.log_line

    async def registered(self, broker_epoch: int) -> None:
        """Note that a run under this broker epoch begins. Raises: StorageUnavailable."""
        boot_id = self._boot_id
        try:
            await self._pool.run(lambda: self._file.write(broker_epoch, boot_id, clean=False))
        except OSError as error:
            raise storage_error(error, "Cannot note the registration in the data directory") from error

    async def stopped(self, broker_epoch: int) -> None:
        """One of several brokers has closed its logs in order: its next registration is kept (M4)."""
        boot_id = self._boot_id
        try:
            await self._pool.run(lambda: self._file.write(broker_epoch, boot_id, clean=True))
        except OSError as error:
            self._log_line(
                Event.LOG_DIRECTORY_FAILED.line(f"the next start counts as one after an unclean stop: {error}")
            )
