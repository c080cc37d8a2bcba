"""The change of the store that a cluster's write-ahead logs are in (ADR 0037, J61 to J64). Pure.

Tests: ``tests/metadata/test_wal_store.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import BrokerId
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import TopicImage
from app.metadata.image.records import LEVEL_FEATURE, NOT_SEALED, OBJECT_LEVEL, broker_change, wal_store_change
from app.metadata.log.log_format import KeyValue

MAIN_STORE: Final = ""
"""In place of the id of a store: the one that everything else is in."""


def change_wal_store(draft: ImageDraft, broker_id: BrokerId, wal_store: str) -> list[KeyValue]:
    """The records that move the cluster's write-ahead logs to another store, while nothing counts of any (J63).

    Raises: RequestRejected UNSUPPORTED_VERSION, INVALID_REQUEST.
    """
    why = why_not_this_store(draft.wal_store, wal_store)
    if draft.level < OBJECT_LEVEL:
        raise RequestRejected(ErrorCode.UNSUPPORTED_VERSION, f"{why}. {needs_level(draft.level)}")
    holder = next((topic for topic in draft.topics if not may_change((topic,))), None)
    if holder is not None:
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST,
            f"{why}. The store of write-ahead logs cannot be changed while a topic has records in them, as '{holder.name}' has:"
            " alter its firn.durability first.",
        )
    others = [each for each in draft.brokers.values() if each.broker_id != broker_id]
    living = sorted(each.broker_id for each in others if not each.fenced)
    if living:
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST,
            f"{why}. To change the store of write-ahead logs, stop all brokers first: {living} are running.",
        )
    return [
        wal_store_change(draft.cluster_id, draft.created_ms, wal_store),
        # A process of theirs that was cut off has the former store: it must register again before it leads.
        *(
            broker_change(each.broker_id, replace(each, wal_end=0).record())
            for each in others
            if each.wal_end == NOT_SEALED
        ),
    ]


def may_change(topics: Iterable[TopicImage]) -> bool:
    """Whether nothing of these topics is, or comes to be, in write-ahead logs."""
    return not any(one.durability or one.wal_ranges for topic in topics for one in topic.partitions)


def needs_level(level: int) -> str:
    """A sentence: the level that a cluster needs for a WAL store, and how to raise it."""
    return (
        f"firn.wal.store.url (--wal-store) needs {LEVEL_FEATURE} {OBJECT_LEVEL}, and the cluster's is {level}: run `firn cluster "
        f"features --upgrade {LEVEL_FEATURE}={OBJECT_LEVEL}` with the brokers that are there, and start again."
    )


def why_not_this_store(named: str, found: str) -> str:
    """Why a broker cannot join with the store ``found``, in a cluster that names another one; with the mend."""
    if not named:
        return (
            "The cluster's write-ahead logs are in its main store, and this broker has a WAL store: start it without --wal-store "
            "(firn.wal.store.url)"
        )
    has = f"that of this broker is {found}" if found else "this broker names none"
    return (
        f"The cluster's write-ahead logs are in the WAL store {named}, and {has}: start it with the --wal-store "
        "(firn.wal.store.url) of the other brokers"
    )
