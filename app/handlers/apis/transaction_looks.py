"""Reports this broker's transactions to a coordinator whose log may lack its end (ADR 0037, J46)."""

from __future__ import annotations

from typing import Final

from app.core.errors import ErrorCode
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.context import Context, Request
from app.metadata.peers.control import LookRequest, LookResponse
from app.wire.apikeys import ApiKey
from app.wire.private import pack, unpack


async def handle_look(context: Context, request: Request, message: bytes) -> bytes:
    """Return the partitions that this broker leads, with the open transactions there, or with the state of the named transactions.

    Raises: FirnError if something cannot be read now.
    """
    del request
    asked = unpack(LookRequest, message)
    if asked.cluster_id != context.image.cluster_id:
        return pack(LookResponse(int(ErrorCode.INCONSISTENT_CLUSTER_ID)))
    if context.image.sequence < asked.sequence:
        # By an older image this broker may take markers of a coordinator that was replaced.
        return pack(LookResponse(int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)))
    return pack(await context.transactions.look(asked))


def _refuse(request: Request, message: object, code: ErrorCode, why: str) -> None:
    return None


APIS: Final[ApiTable] = {ApiKey.FIRN_TRANSACTIONS: Api(handle_look, _refuse)}
