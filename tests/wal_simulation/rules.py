"""The rules that a run goes by: the cores, and what the shells do around them. Planted faults replace one each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.metadata.wal_ranges import opened, sealed
from app.wal.sealing import Sealing
from app.wal.takeover import continue_from, local_end
from app.wal.trimming import WalNeeds, deletable
from app.wal.writer import WalWriter


@dataclass(frozen=True, slots=True)
class Rules:
    """Each field is a rule, or the core that keeps it."""

    writer: Callable[..., Any] = WalWriter
    sealing: Callable[..., Any] = Sealing
    continue_from: Callable[..., Any] = continue_from
    local_end: Callable[..., Any] = local_end
    needs: Callable[..., Any] = WalNeeds
    deletable: Callable[..., Any] = deletable
    opened: Callable[..., Any] = opened
    sealed: Callable[..., Any] = sealed
    ends_with_seal: bool = True
    """J16: a leadership that is not released ends with a seal."""
    seals_before_entry: bool = True
    """J17."""
    release_is_final: bool = True
    """J18."""
    release_is_flushed: bool = True
    """J18."""
    release_names_epochs: bool = True
    """J18."""
    registers_anew: bool = True
    """J1: every registration gets another broker epoch."""
    sealed_joins_anew: bool = True
    """J14: a process whose log was sealed gets another broker epoch."""
    floor_is_durable: bool = True
    """J33."""
    drops_tiered_only: bool = True
    """J35."""
    first_number: Callable[[int], int] = lambda reported: reported
    """J19."""
    two_entries: bool = True
    """J40."""
    rereads_images: bool = True
    """J31."""
    counts_ranges_only: bool = True
    """J24."""


RULES = Rules()
