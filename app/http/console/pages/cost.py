"""The page of the cluster's cost: by kind, and by the topics that cause it.

Tests: ``tests/http/console/test_administration.py``.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.cost.measured import MEASURED_NAMES, NOT_MEASURED, OTHERS
from app.cost.prices import AS_OF, REGION
from app.http.console.asking import soon
from app.http.console.pages.overview import numbers_of
from app.http.console.rendering import ConsoleRoute, page
from app.http.serving import gateway_of
from app.security.acls import Operation

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)


@router.get("/console/cost")
async def show_cost(request: Request) -> Response:
    gateway = gateway_of(request)
    view = await soon(gateway, gateway.admin.describe_brokers)
    await gateway.admin.check_may(Operation.DESCRIBE)
    numbers = await numbers_of(gateway, sorted(view.brokers), MEASURED_NAMES)
    return await page(
        request,
        "cost",
        section="cost",
        bill=numbers.bill,
        silent=numbers.silent,
        others=OTHERS,
        prices=f"{REGION}, {AS_OF}",
        not_measured=NOT_MEASURED,
    )
