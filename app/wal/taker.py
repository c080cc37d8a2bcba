"""Ends the log of another process, or of an earlier one. A thin shell around ``Sealing``.

Tests: ``tests/wal/test_shells.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from random import Random
from typing import Final, TypeVar

from app.core.errors import StorageUnavailable
from app.core.seams import Clock
from app.metadata.image.wal_ranges import WalId
from app.metadata.log.append_attempt import BACKOFF_FIRST_S, BACKOFF_MAX_S
from app.objectstore.api import AlreadyExists, ObjectStore
from app.wal.format import NONCE_BYTES, WalFooter, encode_seal
from app.wal.objects import list_sizes, put, read_footers
from app.wal.sealing import Found, List, PutSeal, ReadTails, Sealed, Sealing

T = TypeVar("T")

ROUNDS_MAX: Final = 100
"""A round is lost only to a writer that is alive, is faster, and has not heard that it is to stop, or to a process that deletes."""


async def seal(
    store: ObjectStore, wal: WalId, *, sealer: int, clock: Clock, rng: Random, deadline_s: float = 30.0
) -> int:
    """End a log for good (J9 to J13). Returns: its end; objects below count, and no other ever will.

    A log that has ended already keeps its end. Undecided puts are repeated until ``deadline_s`` after the beginning.
    Raises: StorageUnavailable (nothing is known; seal again), CorruptionError.
    """
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + deadline_s
    sealing = Sealing()
    seals: dict[int, bytes] = {}
    sizes: dict[int, int] = {}

    async def until_known(ask: Callable[[], Awaitable[T]]) -> T:
        delay_s = BACKOFF_FIRST_S
        while True:
            try:
                return await ask()
            except StorageUnavailable:
                if loop.time() + delay_s >= give_up_s:
                    raise
            await asyncio.sleep(delay_s * rng.uniform(0.5, 1.0))
            delay_s = min(2 * delay_s, BACKOFF_MAX_S)

    async def tails(numbers: Collection[int]) -> dict[int, WalFooter]:
        return await read_footers(store, wal, numbers, sizes=sizes)

    async def put_seal(number: int) -> bool:
        data = seals.get(number)
        if data is None:
            data = seals[number] = encode_seal(wal, number, rng.randbytes(NONCE_BYTES), clock.now_ms(), sealer)
        try:
            await put(store, wal, number, data)
        except AlreadyExists:
            return False
        return True

    action = sealing.start()
    while sealing.rounds <= ROUNDS_MAX:
        match action:
            case List(above):
                sizes |= (listed := await until_known(lambda above=above: list_sizes(store, wal, above=above)))  # type: ignore[misc]
                action = sealing.on_list(listed)
            case ReadTails(numbers):
                footers = await until_known(lambda numbers=numbers: tails(numbers))  # type: ignore[misc]
                found = dict.fromkeys(numbers, Found.MISSING)
                for number, footer in footers.items():
                    found[number] = Found.SEAL if footer.is_seal else Found.RECORDS
                action = sealing.on_tails(found)
            case PutSeal(number):
                action = sealing.on_put(written=await until_known(lambda number=number: put_seal(number)))  # type: ignore[misc]
            case Sealed(end):
                return end
    raise StorageUnavailable(f"Write-ahead log {wal} could not be sealed: its writer is alive and goes on.")
