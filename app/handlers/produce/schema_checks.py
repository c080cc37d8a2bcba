"""Checks the schemas of a produced batch, where its topic asks for it (ADR 0044).

The ids of the records are gathered on a pool thread, and looked for in the registry on the loop. Tests:
``tests/broker/test_schema_validation.py``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from app.configs import SchemaValidation
from app.core.errors import LimitExceeded
from app.core.faults import place_of
from app.hot.preparation import DecompressesTooFar
from app.registry.payloads.prefix import Side
from app.schemas.batch_ids import BatchUses, SchemaUse, check_payloads, uses_of
from app.schemas.knowing import Naming

if TYPE_CHECKING:
    from app.configs import TopicConfig
    from app.handlers.clients.client import Client

CHECKING: Final = "checking payloads by schema"
"""The name of this work in log lines about faults."""


async def check_schemas(connection: Client, topic: str, config: TopicConfig, records: memoryview) -> None:
    """Check a prepared batch of a topic whose schemas are checked.

    Raises: RecordsRejected INVALID_RECORD, which names the bad records; RequestRejected NOT_ENOUGH_REPLICAS if the registry's log
    cannot be read now; ProtocolError; DecompressesTooFar; CancelledError if the connection ends before the turn of the batch.
    """
    follower, preparations = connection.context.schema_follower, connection.server.preparations

    def gather(raw_bytes_max: int) -> BatchUses:
        try:
            return uses_of(records, config, raw_bytes_max)
        except LimitExceeded:
            raise DecompressesTooFar(raw_bytes_max) from None

    uses = await preparations.run(connection, len(records), gather)
    asked = {use: (naming_of(topic, use.side, config), use.ref) for use in uses.records}
    versions = await follower.versions(asked.values())
    unknown = {
        use: f"The subject of the {use.side.value} knows no schema {use.ref}. Register it, or use the subject's."
        for use, one in asked.items()
        if versions[one] is None
    }
    # Each record may have a fault of its own, so their list is made beside the loop.
    refusal = await connection.context.pool.run(partial(uses.refusal, unknown)) if uses.faults or unknown else None
    if refusal is not None:
        raise refusal
    if config.firn_schema_validation is not SchemaValidation.FULL:
        return
    named = {use: version for use, one in asked.items() if (version := versions[one]) is not None}
    models = dict(zip(named, await follower.models(named.values()), strict=True))
    broken: dict[SchemaUse, Exception] = {}

    def check(raw_bytes_max: int) -> None:
        try:
            check_payloads(records, config, models, raw_bytes_max, broken)
        except LimitExceeded:
            raise DecompressesTooFar(raw_bytes_max) from None

    try:
        await preparations.run(connection, len(records), check)
    finally:
        for use, error in broken.items():
            connection.context.faults.met(
                CHECKING,
                f"{use.ref} of {topic}",
                f"the check by schema {use.ref} of topic {topic} failed, so records were refused; please report the schema: "
                f"{place_of(error)}",
            )


def naming_of(topic: str, side: Side, config: TopicConfig) -> Naming:
    """The subject in which the schemas of a topic's keys or values are looked for."""
    of_keys = side is Side.KEY
    strategy = config.confluent_key_subject_name_strategy if of_keys else config.confluent_value_subject_name_strategy
    return Naming(topic, side, strategy)
