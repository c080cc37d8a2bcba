"""Holds copies of a topic when the controller asks for it, and reports which of its records are in the object store (ADR 0009).

Tests: ``tests/broker/test_private_apis.py``.
"""

from __future__ import annotations

from typing import Final

from app.core.errors import ErrorCode, FirnError
from app.core.units import LeaderEpoch, PartitionIndex
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.request import Request
from app.handlers.base.views import PeersView
from app.metadata.peers.control import HoldRequest, HoldResponse
from app.tiering.upload.copy_holds import answer_of
from app.wire.apikeys import ApiKey
from app.wire.private import pack, unpack


async def handle_hold(context: PeersView, request: Request, message: bytes) -> bytes:
    """The beginning of a hold, or its end. Raises: ProtocolError."""
    del request
    asked = unpack(HoldRequest, message)
    if asked.cluster_id != context.image.cluster_id:
        return pack(HoldResponse(int(ErrorCode.INCONSISTENT_CLUSTER_ID), "The request is for another cluster."))
    if context.desk is None:
        return pack(
            HoldResponse(int(ErrorCode.NOT_CONTROLLER), "This broker is alone: it holds copies for itself only.")
        )
    if not asked.partitions:
        context.copy_holds.end(asked.hold, asked.sequence)
        return pack(HoldResponse())
    wanted = {PartitionIndex(index): LeaderEpoch(epoch) for index, epoch in asked.partitions}
    try:
        return pack(HoldResponse(segments=await context.copy_holds.begin(asked.hold, asked.sequence, wanted)))
    except FirnError as error:
        return pack(answer_of(error))


def _refuse(request: Request, message: object, code: ErrorCode, why: str) -> None:
    return None


APIS: Final[ApiTable] = {ApiKey.FIRN_HOLD: Api(handle_hold, _refuse)}
