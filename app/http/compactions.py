"""Firn's own route for compaction jobs: it asks a partition's leader to replace segments, step by step.

Tests: ``tests/http/test_rights.py``, ``tests/http/test_schemas.py``.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import PartitionIndex, TopicPartition
from app.http.bodies import small_body
from app.http.errors import RestError
from app.http.gateway import ADMIN_BODY_BYTES_MAX
from app.http.schemas import request_body
from app.http.serving import gateway_of
from app.wire.private import TierReplaceRequest

router = APIRouter(prefix="/firn/v1", default_response_class=Response)

_DONE: Final = 204
_CONFLICT: Final = 409
_INVALID: Final = 422
OFFSET_MAX: Final = 2**63 - 1
SEGMENTS_REPLACED_MAX: Final = 9_999
"""The leader replaces so many at a time at most."""


class ReplaceSegmentsBody(msgspec.Struct):
    step: Literal["begin", "finish", "give-up"]
    inputs: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=SEGMENTS_REPLACED_MAX)]
    segment_id: UUID | None = None
    base_offset: Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)] = 0
    end_offset: Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)] = 0
    output: Annotated[str, msgspec.Meta(extra_json_schema={"deprecated": True})] | msgspec.UnsetType = msgspec.UNSET
    """Jobs of an older version send this instead of the id and the range."""


BODIES: Final = (ReplaceSegmentsBody,)


@router.post(
    "/topics/{topic_name}/partitions/{partition_id}/replacements",
    summary="Replace segments in the object store by one of the same offsets: one step",
    tags=["Tier (Firn)"],
    status_code=_DONE,
    openapi_extra=request_body(
        ReplaceSegmentsBody,
        {
            "step": "begin",
            "inputs": ["0198c0de-0000-7000-8000-00000000000a"],
            "segment_id": "0198c0de-0000-4000-8000-00000000000b",
            "base_offset": 0,
            "end_offset": 1000,
        },
    ),
)
async def replace_segments(topic_name: str, partition_id: int, request: Request) -> Response:
    """Answered 409: the inputs are no longer readable segments side by side. Nothing was changed."""
    gateway = gateway_of(request)
    wanted = await small_body(
        request,
        ReplaceSegmentsBody,
        bytes_max=ADMIN_BODY_BYTES_MAX,
        idle_timeout_ms=gateway.settings.body_idle_timeout_ms,
    )
    if wanted.segment_id is None:
        if wanted.output is not msgspec.UNSET:
            raise RestError(_INVALID, "The job is of an older version of Firn, whose requests are refused: upgrade it.")
        raise RestError(_INVALID, "The body is not of the right form: it names no `segment_id`.")
    asked = TierReplaceRequest(
        topic_name,
        partition_id,
        wanted.step,
        [one.bytes for one in wanted.inputs],
        wanted.segment_id.bytes,
        wanted.base_offset,
        wanted.end_offset,
    )
    try:
        await gateway.admin.tier_replace(TopicPartition(topic_name, PartitionIndex(partition_id)), asked)
    except RequestRejected as error:
        if error.code is ErrorCode.OPERATION_NOT_ATTEMPTED:
            raise RestError(_CONFLICT, str(error)) from error
        raise
    return Response(status_code=_DONE)
