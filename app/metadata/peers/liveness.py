"""Whether a broker is alive. This is asked only before a take-over, and trusted for nothing else.

A wrong result costs a needless take-over or a needless refusal, but no data: seals decide who may write (INV-2).

"Silent for 30 s" must not compare the clocks of two machines. ``ObjectLiveness`` uses one clock, the store's: the asking broker
writes a probe object and compares its modification time with the heartbeat's. (To watch the heartbeat for 30 s would also work.
But then every start on a new directory would take 30 s, even days after a crash.) ``RedisLiveness``, in ``redis_liveness.py``,
uses Redis' clock: a key with a time to live.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

import msgspec

from app.core.seams import Clock
from app.core.units import BrokerId, DurationMs
from app.metadata.log import layout
from app.objectstore.api import ObjectMissing, ObjectStore

BEAT_INTERVAL_MS: Final = 10_000
"""Interval of a living broker's heartbeats."""

SILENCE_MS_MAX: Final = 30_000
"""A broker that is silent for longer may be replaced. Two heartbeats may be lost."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One start of one broker on one data directory."""

    broker_id: BrokerId
    directory_id: UUID
    incarnation: UUID


class Liveness(Protocol):
    """Heartbeats of brokers. Every method raises StorageUnavailable if it cannot tell."""

    async def beat(self, identity: Identity) -> None:
        """Send a heartbeat."""
        ...

    async def age_ms(self, broker_id: BrokerId, directory_id: UUID) -> DurationMs | None:
        """Time since the last heartbeat of the directory's broker; None if the broker left, or if the heartbeat is too old to
        be known."""
        ...

    async def leave(self, identity: Identity) -> None:
        """Report that this broker has stopped, so that others need not wait until it counts as silent."""
        ...


class HeartbeatObject(msgspec.Struct, array_like=True, frozen=True):
    """Content of a heartbeat object, for people. Only its modification time is used."""

    version: int
    broker_id: int
    directory_id: UUID
    incarnation: UUID
    count: int
    now_ms: int


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")


class ObjectLiveness:
    """Heartbeats as small objects. A heartbeat costs one PUT. A query costs a PUT, two HEADs and a delete.

    Modification times are those of one store, whose servers agree to far less than 30 s."""

    def __init__(self, store: ObjectStore, *, rng: random.Random, clock: Clock) -> None:
        self._store = store
        self._rng = rng
        self._clock = clock
        self._count = 0

    async def beat(self, identity: Identity) -> None:
        self._count += 1
        content = HeartbeatObject(
            1,
            identity.broker_id,
            identity.directory_id,
            identity.incarnation,
            self._count,
            self._clock.now_ms(),
        )
        await self._store.put(layout.heartbeat_key(identity.broker_id, identity.directory_id), _encoder.encode(content))

    async def age_ms(self, broker_id: BrokerId, directory_id: UUID) -> DurationMs | None:
        probe = layout.probe_key(broker_id, UUID(bytes=self._rng.randbytes(16), version=4))
        await self._store.put(probe, b"")
        asked_ms = (await self._store.head(probe)).modified_ms
        await self._store.delete(probe)
        try:
            heartbeat = await self._store.head(layout.heartbeat_key(broker_id, directory_id))
        except ObjectMissing:
            return None
        return DurationMs(max(asked_ms - heartbeat.modified_ms, 0))

    async def leave(self, identity: Identity) -> None:
        await self._store.delete(layout.heartbeat_key(identity.broker_id, identity.directory_id))
