"""The bucket of an S3 server, and a topic that is tiered to it."""

from __future__ import annotations

import asyncio

from tests.faults.producing import LATEST_TIERED, Link

BUCKET = "faults"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


async def tiered_to(connection: Link, topic: str, offset: int, seconds: float = 40) -> None:
    """Wait until the last tiered offset is ``offset`` or higher."""
    async with asyncio.timeout(seconds):
        while await connection.offset(topic, 0, LATEST_TIERED) < offset:
            await asyncio.sleep(0.05)
