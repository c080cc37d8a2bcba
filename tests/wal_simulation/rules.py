"""The rules that a run goes by: the cores, and what the shells do around them. Planted faults replace one each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.metadata.image.wal_ranges import opened, sealed
from app.wal.sealing import Sealing
from app.wal.takeover import continue_from, local_end
from app.wal.trimming import WalNeeds, deletable, has_ended
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
    has_ended: Callable[..., bool] = has_ended
    """J36."""
    registers_anew: bool = True
    """J1: a process gets a broker epoch of its own before it writes."""
    sealed_joins_anew: bool = True
    """J14: a process whose log was sealed gets another broker epoch."""
    reads_ended_ranges: bool = True
    """J15: what a taker reads of a range is read after its log has ended."""
    ends_with_seal: bool = True
    """J16: a leadership that is not released ends with a seal."""
    elects_after_seal: bool = True
    """J17: nobody is named leader of a partition with an open range."""
    release_is_final: bool = True
    """J18."""
    release_is_flushed: bool = True
    """J18."""
    release_names_epochs: bool = True
    """J18."""
    first_number: Callable[[int], int] = lambda reported: reported
    """J19."""
    registration_ends_leaderships: bool = True
    """J22: a registration of the same node leaves open ranges for a seal."""
    ignores_garbage: bool = True
    """J12: what has landed above the end of a log is not even read."""
    ignores_older_logs: bool = True
    """J24: logs of older broker epochs do not count."""
    polls_before_damage: bool = True
    """J31: a reader that misses an object reads manifest and image before it reports damage."""
    trims_prefix: bool = True
    """J32."""
    floor_is_durable: bool = True
    """J33."""
    drops_tiered_only: bool = True
    """J35."""
    rolls: bool = True
    """J38."""
    rolls_ended: bool = True
    """J38: what is in closed ranges is tiered soon, however rarely the partition rolls."""
    two_entries_to_object: bool = True
    """J40."""
    two_entries_from_object: bool = True
    """J41."""
    changes_fail_over_as_before: bool = True
    """J42."""
    segments_have_older: bool = True
    """The footer of a segment has the older batches of producers, too. The format of segments has the last ones only, which ADR
    0037 calls a known limit: batches are doubled then as it says there. With this rule, nothing else doubles them."""


RULES = Rules()
