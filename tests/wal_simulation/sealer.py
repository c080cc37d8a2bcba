"""Whoever ends a write-ahead log: a controller, or the log's own broker at a clean stop (ADR 0037, J9 to J13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from app.core.units import TimestampMs
from app.metadata.image.wal_ranges import WalId
from app.wal.format import encode_seal
from app.wal.sealing import Action, Found, List, PutSeal, ReadTails, Sealed
from tests.wal_simulation.bucket import Stored

if TYPE_CHECKING:
    from tests.wal_simulation.broker import Broker


def end_log(broker: Broker, wal: WalId, done: Callable[[int], None]) -> None:
    """Seal ``wal``, however long it takes, and tell its end."""
    world, bucket = broker.world, broker.world.bucket
    sealing = world.rules.sealing(window=world.plan.window)
    seals: dict[int, bytes] = {}
    done = broker.step("seal", done)

    def do(action: Action) -> None:
        match action:
            case List(above):
                broker.until_known(
                    lambda told: bucket.list_numbers(broker, wal, above, told),
                    lambda found: do(sealing.on_list(found)),
                )
            case ReadTails(numbers):
                read_all(numbers, {})
            case PutSeal(number):
                if number not in seals:
                    seals[number] = encode_seal(wal, number, world.new_nonce(), TimestampMs(0), broker.node_id)
                broker.until_known(
                    lambda told: bucket.put(broker, wal, number, seals[number], told),
                    lambda written: do(sealing.on_put(written=written)),
                )
            case Sealed(end):
                world.checkers.sealed(wal, end)
                done(end)

    def read_all(numbers: tuple[int, ...], found: dict[int, Found]) -> None:
        def told(number: int, stored: Any) -> None:
            if isinstance(stored, Stored):
                found[number] = Found.SEAL if stored.footer.is_seal else Found.RECORDS
            else:
                found[number] = Found.MISSING
            if len(found) == len(numbers):
                do(sealing.on_tails(found))

        for number in numbers:
            broker.until_known(
                lambda answer, number=number: bucket.read(broker, wal, number, answer),  # type: ignore[misc]
                lambda stored, number=number: told(number, stored),  # type: ignore[misc]
            )

    do(sealing.start())
