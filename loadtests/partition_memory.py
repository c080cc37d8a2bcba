"""How much memory of the broker a partition takes: `python -m loadtests.partition_memory [PARTITIONS]`.

Makes a topic of so many partitions on a broker of its own, appends one record to each, and prints what the resident size grew by,
and how many files are open.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from app.broker.start.process import Broker
from app.configs import BrokerConfig
from app.core.errors import FirnError
from app.records.builder import build_batch

PARTITIONS = 10_000


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def measure(partitions: int, directory: str) -> None:
    config = BrokerConfig(data_dir=f"{directory}/data", listen_port=0, http_address="off")
    broker = Broker(config)
    try:
        await broker.start()
        before = rss_bytes()
        await broker.node.membership.controller.create_topic("t", partitions, {})
        while sum(broker.node.logs.get("t", index) is not None for index in range(partitions)) < partitions:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        made = rss_bytes()
        now_ms = broker.node.context.clock.now_ms()
        for index in range(partitions):
            log = broker.node.logs.get("t", index)
            assert log is not None
            batch = build_batch([(now_ms, b"key", bytes(100), ())])
            log.append_as_leader(memoryview(bytearray(batch)), now_ms=now_ms)
        written = rss_bytes()
        opened = broker.node.logs.log_directory.descriptors.open_count
        print(f"{partitions} partitions: {(made - before) / partitions / 1000:.1f} kB each when made,")
        print(f"{(written - before) / partitions / 1000:.1f} kB each with one record; {opened} files of logs open")
    finally:
        await broker.stop()


def main() -> None:
    partitions = int(sys.argv[1]) if len(sys.argv) > 1 else PARTITIONS
    with tempfile.TemporaryDirectory() as directory:
        try:
            asyncio.run(measure(partitions, directory))
        except FirnError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
