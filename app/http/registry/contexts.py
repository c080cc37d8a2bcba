"""Contexts, metadata of the registry, and the parts of Confluent's registry that Firn does not have."""

from __future__ import annotations

from enum import Enum
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from app import __version__
from app.core.turns import Portion, ordered
from app.http.errors import Error
from app.http.registry.answers import answered
from app.http.registry.parameters import PAGE, query
from app.http.registry.requests import service_of
from app.http.registry.shapes import NAME, answers
from app.http.registry.subjects import page
from app.http.serving import gateway_of

router = APIRouter(default_response_class=Response)
TAGS: Final[list[str | Enum]] = ["Contexts and metadata (schema registry)"]


@router.get(
    "/contexts",
    summary="List contexts",
    responses=answers(NAME, "The names of contexts.", many=True),
    tags=TAGS,
    openapi_extra=query("contextPrefix", *PAGE),
)
async def list_contexts(request: Request) -> Response:
    view = await service_of(request).view()
    prefix = request.query_params.get("contextPrefix", "")
    return answered(
        page(request, [one for one in await ordered(view.contexts(), Portion(), str) if one.startswith(prefix)])
    )


@router.get("/v1/metadata/id", summary="Get the ids of the cluster and of the registry", tags=TAGS)
async def get_id(request: Request) -> Response:
    clusters = {"kafka-cluster": await gateway_of(request).cluster_id(), "schema-registry-cluster": "schema-registry"}
    return answered({"id": "", "scope": {"path": [], "clusters": clusters}})


@router.get("/v1/metadata/version", summary="Get the version of the registry", tags=TAGS)
async def get_version() -> Response:
    return answered({"version": __version__, "commitId": ""})


@router.get("/v1/metadata/deployment", summary="Get the attributes of the deployment", tags=TAGS)
async def get_deployment() -> Response:
    return answered({"attributes": []})


async def _absent() -> Response:
    message = "Firn has no registry of keys for encryption and no exporters. Its schemas are in the topic _schemas."
    return answered(Error(404, message), 404)


for _path in ("/exporters", "/exporters/{rest:path}", "/dek-registry", "/dek-registry/{rest:path}"):
    router.add_api_route(_path, _absent, methods=["GET", "POST", "PUT", "DELETE"], include_in_schema=False)
