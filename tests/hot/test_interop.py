"""Kafka's own dump tool opens what the hot tier writes, and finds it in order."""

from __future__ import annotations

import asyncio
import os
import shutil

import pytest

from app.core.units import LeaderEpoch, ProducerEpoch, ProducerId
from app.machine.files import PosixFileSystem
from app.records.control import ControlType
from tests.hot.helpers import NOW, batch, idempotent, manager_over, new_log

LIBRARIES = os.environ.get("FIRN_KAFKA_LIBS", "")

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not LIBRARIES, reason="FIRN_KAFKA_LIBS does not name the directory of Kafka's jars"),
    pytest.mark.skipif(shutil.which("java") is None, reason="there is no java"),
]


async def test_kafkas_dump_tool_reads_every_file(tmp_path: object) -> None:
    manager = manager_over(PosixFileSystem(), data_dir=f"{tmp_path}/data")
    await manager.load_all()
    log = new_log(manager, segment_bytes=20_000, index_interval_bytes=500)
    log.become_leader(LeaderEpoch(2))
    for sequence in range(150):
        log.append_as_leader(idempotent(sequence, timestamp=NOW + sequence % 40, value=b"x" * 100), now_ms=NOW)
        log.append_as_leader(batch(3, codec=sequence % 5, timestamp=NOW + sequence), now_ms=NOW)
    log.append_as_leader(idempotent(0, 4, producer_id=2, transactional=True), now_ms=NOW)
    log.append_control(
        ControlType.ABORT, producer_id=ProducerId(2), producer_epoch=ProducerEpoch(0), coordinator_epoch=1, now_ms=NOW
    )
    path = log.path
    await manager.close()
    files = sorted(
        f"{path}/{name}"
        for name in os.listdir(path)
        if name.endswith((".log", ".index", ".timeindex", ".txnindex", ".snapshot"))
    )
    assert {file.rsplit(".", 1)[1] for file in files} == {"log", "index", "timeindex", "txnindex", "snapshot"}
    command = ["java", "-cp", f"{LIBRARIES}/*", "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files"]
    tool = await asyncio.create_subprocess_exec(
        *command, ",".join(files), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    answer, errors = (part.decode() for part in await asyncio.wait_for(tool.communicate(), 120))
    assert tool.returncode == 0, errors
    output = answer
    for complaint in (
        "Mismatches",
        "isvalid: false",
        "Found timestamp mismatch",
        "out of order",
        "Exception",
        "corrupt",
    ):
        assert complaint not in output + errors, output[-2000:]
    assert output.count("baseOffset:") == 302
    assert "partitionLeaderEpoch: 2" in output
    assert "producerId: 2 firstOffset: 600 lastOffset: 604 lastStableOffset: 605" in output
    assert output.count("Dumping") == len(files)
