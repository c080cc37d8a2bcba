"""Which store the write-ahead logs of a cluster are in (ADR 0037, J61 to J64).

A store of their own has a *marker* with its id, and the CLUSTER record of the cluster log names that id. A URL would not do: the
same store has other URLs on other machines, and the same URL may be another disk where nothing is mounted.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from app.core.errors import CorruptionError, clause
from app.metadata.image.image import ClusterImage
from app.metadata.log import layout
from app.metadata.view.registration import StartRefused
from app.objectstore.api import AlreadyExists, ObjectMissing, ObjectStore

FORMAT: Final = 1
MARKER_BYTES_MAX: Final = 1024
"""A marker has about 110."""


class _MarkerText(msgspec.Struct, frozen=True):
    format: int
    cluster: str
    store: str


class StoreMarker(NamedTuple):
    """The identity of a store of write-ahead logs, as the store names it."""

    cluster_id: str
    store_id: str


def encode_marker(marker: StoreMarker) -> bytes:
    """A line of JSON, so that an operator can read it."""
    return msgspec.json.encode(_MarkerText(FORMAT, marker.cluster_id, marker.store_id)) + b"\n"


def decode_marker(data: bytes) -> StoreMarker:
    """Raises: CorruptionError."""
    try:
        if len(data) > MARKER_BYTES_MAX:
            raise ValueError(f"it has {len(data)} bytes")
        text = msgspec.json.decode(data, type=_MarkerText)
        UUID(text.store)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise CorruptionError(f"{layout.WAL_STORE_KEY} is not the marker of a WAL store: {clause(error)}.") from None
    if text.format != FORMAT:
        raise CorruptionError(
            f"{layout.WAL_STORE_KEY} has format version {text.format}, a format version from the future: this software knows "
            f"{FORMAT}; upgrade it."
        )
    return StoreMarker(text.cluster, text.store)


async def find_wal_store(store: ObjectStore, url: str, image: ClusterImage, rng: random.Random) -> str:
    """The id of the store of write-ahead logs at ``url``. A marker is put if the cluster names no store yet (J64).

    ``store`` asks that store for keys below ``wal/``.

    ``image`` is of a cluster. Raises: StartRefused (it is not this cluster's), CorruptionError, StorageUnavailable.
    """
    assert image.cluster_id, "the cluster is created before a broker registers"
    while True:
        try:
            marker = decode_marker(await store.get(layout.WAL_STORE_KEY))
        except ObjectMissing:
            if image.wal_store:
                raise StartRefused(
                    f"The cluster's write-ahead logs are in the WAL store {image.wal_store}, and {url} has no marker of a WAL store"
                    f" ({layout.WAL_STORE_KEY}): mount the file system, or name the store that the other brokers have"
                    " (--wal-store, firn.wal.store.url)."
                ) from None
        else:
            break
        marker = StoreMarker(image.cluster_id, str(UUID(bytes=rng.randbytes(16), version=4)))
        try:
            await store.put_if_absent(layout.WAL_STORE_KEY, encode_marker(marker))
        except AlreadyExists:
            continue  # of another broker that starts, or of an attempt whose answer was lost
        break
    if marker.cluster_id != image.cluster_id:
        raise StartRefused(
            f"{url} has the write-ahead logs of cluster {marker.cluster_id}, and this is cluster {image.cluster_id}: give each"
            " cluster a WAL store (--wal-store) or a prefix of its own."
        )
    return marker.store_id
