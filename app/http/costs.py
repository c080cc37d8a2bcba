"""The cluster's price a month, by the counters of its brokers in the last hour (``firn cost --measured``).

Tests: ``tests/broker/test_spending.py``.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.cost.measured import MEASURED_NAMES, as_json, measured_bill, spent_of
from app.cost.prices import Prices
from app.http.bodies import json_response
from app.http.errors import RestError
from app.http.serving import gateway_of

router = APIRouter(prefix="/v1", default_response_class=Response)

_TOO_EARLY = 503


@router.get("/cost", summary="Get what the cluster costs a month", tags=["Cost (Firn)"])
async def get_cost(request: Request) -> Response:
    """The list price of a month like the last hour, and the share of each topic. It covers requests, storage in the object store,
    and bytes between zones, without machines and disks. Answered 503 if no broker has run for two minutes."""
    answers = await gateway_of(request).admin.metrics_of_all(MEASURED_NAMES)
    found = [
        spent
        for answer in answers.values()
        if (spent := spent_of((one.name, dict(one.labels), one.value) for one in answer.samples)) is not None
    ]
    if not found:
        raise RestError(_TOO_EARLY, "No broker has counted for a minute yet. Ask again later.")
    return json_response(as_json(measured_bill(found, Prices())))
