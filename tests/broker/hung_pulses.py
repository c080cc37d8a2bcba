"""A pulse thread whose store hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from app.metadata.image.image import BrokerImage
from app.metadata.peers.control import PulseRequest, PulseResponse
from app.metadata.peers.pulses import Turn, TurnBoard
from tests.metadata.slow_brokers import images_of


def board() -> TurnBoard:
    images = images_of(2)
    return TurnBoard(Turn(time.perf_counter(), "cluster", 1, 1, True, images[2], (images[2],)))


class Hangs:
    """A link whose broker never answers."""

    def __init__(self) -> None:
        self.asked = 0
        self.closed = False

    async def pulse(self, to: BrokerImage, asked: Callable[[], PulseRequest]) -> PulseResponse:
        self.asked += 1
        await asyncio.Event().wait()
        raise AssertionError("it was never answered")

    async def close(self) -> None:
        self.closed = True
