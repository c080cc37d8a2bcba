"""Firn's own route for compaction jobs: the leader's part of replacing segments, asked step by step."""

from __future__ import annotations

import base64
from typing import Annotated, Final, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.firn_api import TierReplaceRequest
from app.errors import ErrorCode, RequestRejected
from app.http.bodies import small_body
from app.http.errors import RestError
from app.http.gateway import ADMIN_BODY_BYTES_MAX, Gateway
from app.units import PartitionIndex, TopicPartition

router = APIRouter(prefix="/firn/v1", default_response_class=Response)

_DONE: Final = 204
_CONFLICT: Final = 409


class _StepIn(msgspec.Struct):
    step: Literal["begin", "finish", "give-up"]
    inputs: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=10_000)]
    output: str


@router.post(
    "/topics/{topic_name}/partitions/{partition_id}/replacements",
    summary="Replace segments in the object store by one of the same offsets: one step",
    tags=["Tier (Firn)"],
    status_code=_DONE,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "example": {
                        "step": "begin",
                        "inputs": ["0198c0de-0000-7000-8000-00000000000a"],
                        "output": "base 64",
                    }
                }
            },
        }
    },
)
async def replace_segments(topic_name: str, partition_id: int, request: Request) -> Response:
    """409: the inputs are not readable neighbours any more, and nothing was changed."""
    gateway: Gateway = request.app.state.gateway
    wanted = await small_body(
        request, _StepIn, bytes_max=ADMIN_BODY_BYTES_MAX, idle_timeout_ms=gateway.settings.body_idle_timeout_ms
    )
    try:
        output = base64.b64decode(wanted.output, validate=True)
    except ValueError:  # also its subclass binascii.Error
        raise RestError(400, "The output is not base 64.") from None
    asked = TierReplaceRequest(topic_name, partition_id, wanted.step, [one.bytes for one in wanted.inputs], output)
    try:
        await gateway.admin.tier_replace(TopicPartition(topic_name, PartitionIndex(partition_id)), asked)
    except RequestRejected as error:
        if error.code is ErrorCode.OPERATION_NOT_ATTEMPTED:
            raise RestError(_CONFLICT, str(error)) from error
        raise
    return Response(status_code=_DONE)
