"""Adds the registry to the HTTP application. Tests: ``tests/http/registry/test_broker.py``."""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakKeyDictionary

from fastapi import FastAPI

from app.client.schema_log import BrokerSchemaLog
from app.http.direct_routes import add_routes
from app.http.gateway import Gateway
from app.http.registry import compatibility, contexts, ids, requests, settings, shapes, subjects
from app.http.registry.answers import parser_missing, refused
from app.http.registry.followed import FollowedLogs
from app.http.registry.parsing_work import THREADS_MAX, ParsingWork
from app.registry.refusals import ParserMissing, RegistryRefusal
from app.registry.schema_log import SchemaLog

BODIES: Final = (*requests.BODIES, *settings.BODIES, *shapes.BODIES)
"""Types of bodies whose schemas are in the OpenAPI document."""
FREQUENT: Final = frozenset(
    {
        "/schemas/ids/{schema_id}",
        "/schemas/ids/{schema_id}/schema",
        "/schemas/guids/{guid}",
        "/subjects/{subject}",
        "/subjects/{subject}/versions/{version}",
    }
)
"""Paths of the requests by which clients look schemas up."""
ROUTERS: Final = (subjects.router, ids.router, settings.router, compatibility.router, contexts.router)


def add_registry(app: FastAPI) -> None:
    """Add routes, refusals and the state that requests share."""
    app.state.schema_logs = FollowedLogs(_of_brokers)
    app.state.schema_work = ParsingWork()
    app.state.schema_texts = WeakKeyDictionary()
    app.state.encoding_turns = asyncio.Semaphore(THREADS_MAX)
    for router in ROUTERS:
        add_routes(app, router)
    app.add_exception_handler(RegistryRefusal, refused)
    app.add_exception_handler(ParserMissing, parser_missing)


def _of_brokers(gateway: Gateway) -> SchemaLog:
    return BrokerSchemaLog(gateway.cluster)
