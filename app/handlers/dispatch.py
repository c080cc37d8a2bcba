"""Which function answers which API: the tables of the families put together.

Produce and Fetch are not here: ``connection.py`` calls them with raw bytes.
"""

from __future__ import annotations

from app.handlers import (
    api_versions,
    cluster,
    committed_offsets,
    configs,
    consumer_groups,
    coordinators,
    epochs,
    firn_api,
    groups,
    log_dirs,
    metadata,
    offsets,
    producer_ids,
    topics,
    transaction_listing,
    transactional_offsets,
    transactions,
)
from app.handlers.api import Api, ApiTable

FAMILIES: tuple[ApiTable, ...] = (
    api_versions.APIS,
    coordinators.APIS,
    committed_offsets.APIS,
    groups.APIS,
    consumer_groups.APIS,
    metadata.APIS,
    cluster.APIS,
    topics.APIS,
    configs.APIS,
    log_dirs.APIS,
    offsets.APIS,
    epochs.APIS,
    firn_api.APIS,
    producer_ids.APIS,
    transactions.APIS,
    transactional_offsets.APIS,
    transaction_listing.APIS,
)
"""A new family adds its table here."""


def api_table() -> dict[int, Api]:
    """API key to its handler. Raises: AssertionError if two families answer one key."""
    table: dict[int, Api] = {}
    for family in FAMILIES:
        for key, api in family.items():
            assert int(key) not in table, key
            table[int(key)] = api
    return table
