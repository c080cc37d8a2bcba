"""Firn's own route for drains. The hook of a scaling group, for example, calls it before the broker's machine is removed.

Tests: ``tests/http/test_drain.py``.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.http.bodies import json_response
from app.http.serving import gateway_of

router = APIRouter(prefix="/v1", default_response_class=Response)

_ACCEPTED: Final = 202


@router.post(
    "/drain", status_code=_ACCEPTED, summary="Drain and stop the broker of this process", tags=["Drain (Firn)"]
)
async def begin_drain(request: Request) -> Response:
    """The broker refuses writes, uploads the records that are only on its disk, and stops. One without a disk (`firn.ephemeral`)
    gives its leaders to others and stops within seconds. Asked again, it answers how far it is."""
    answer = await gateway_of(request).begin_drain()
    found = {
        "node_id": answer.node_id,
        "state": answer.state,
        "left_bytes": answer.left_bytes,
        "left_partitions": answer.left_partitions,
    }
    return json_response(found, status=_ACCEPTED)
