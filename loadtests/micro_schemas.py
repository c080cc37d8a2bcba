"""CPU time that the check of schemas costs for each record of a produced batch: ids alone, and payloads (ADR 0044).

``python -m loadtests.micro_schemas`` prints medians of 15 rounds. Timers are of CPU, so a busy machine changes little.
"""

from __future__ import annotations

import statistics
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from app.configs import TopicConfig
from app.records.builder import build_batch
from app.registry.parsing.schemas import SchemaType, parse
from app.registry.payloads.prefix import Side
from app.schemas.batch_ids import SchemaUse, check_payloads, uses_of

ROUNDS: Final = 15
RECORDS: Final = 2_000
BYTES_MAX: Final = 1 << 26
AVRO: Final = (
    '{"type":"record","name":"flight","fields":[{"name":"carrier","type":"string"},{"name":"origin","type":"string"},'
    '{"name":"delay","type":["null","int"]},{"name":"distance","type":"double"}]}'
)
JSON: Final = (
    '{"type":"object","properties":{"carrier":{"type":"string"},"origin":{"type":"string"},"delay":{"type":"integer"},'
    '"distance":{"type":"number","minimum":0}},"required":["carrier"]}'
)


def main() -> None:
    config = TopicConfig(confluent_value_schema_validation=True)
    avro = b"\x04UA\x06EWR\x02\x16" + struct.pack("<d", 1400.0)
    json = b'{"carrier":"UA","origin":"EWR","delay":11,"distance":1400.0}'
    for kind, text, payload in ((SchemaType.AVRO, AVRO, avro), (SchemaType.JSON, JSON, json)):
        value = struct.pack(">bI", 0, 1) + payload
        batch = build_batch([(1_700_000_000_000, None, value, ())] * RECORDS)
        schemas = {SchemaUse(Side.VALUE, 1): parse(kind, text)}
        ids = _median(partial(uses_of, batch, config, BYTES_MAX))
        payloads = _median(partial(check_payloads, batch, config, schemas, BYTES_MAX, {}))
        print(f"{kind}: ids {ids:.1f} us a record, payloads {payloads:.1f} us a record")


def _median(work: Callable[[], object]) -> float:
    found = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        found.append((time.process_time() - begin) / RECORDS * 1e6)
    return statistics.median(found)


if __name__ == "__main__":
    main()
