"""UpdateFeatures (key 57, KIP-584, KIP-1022): the level of ``firn.version`` rises.

Tests: ``tests/handlers/test_admin_placement.py``.
"""

from __future__ import annotations

from typing import Final

from app.core.errors import ErrorCode
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.request import Request
from app.handlers.base.views import ChangesView
from app.metadata.changes import features
from app.metadata.changes.features import FeatureAsked, UpgradeType
from app.wire.apikeys import ApiKey
from app.wire.apis.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

UPGRADE_TYPES_FROM: Final = 1
"""First version that says in which direction a level may change."""


async def update_features(
    context: ChangesView, request: Request, message: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """Change all levels, or with ``validate_only`` see whether they could be changed. Raises: RequestRejected."""
    asked = [
        FeatureAsked(one.feature, one.max_version_level, _upgrade_type(request, one)) for one in message.feature_updates
    ]
    await context.controller.submit(
        lambda draft, around: features.update_features.steps(draft, around, asked), validate_only=message.validate_only
    )
    return _response(message, ErrorCode.NONE, None)


def _upgrade_type(request: Request, update: FeatureUpdateKey) -> UpgradeType:
    if request.api_version >= UPGRADE_TYPES_FROM:
        return UpgradeType.of(update.upgrade_type)
    return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE


def refuse_update_features(
    request: Request, message: UpdateFeaturesRequest, code: ErrorCode, sentence: str
) -> UpdateFeaturesResponse:
    del request
    if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return UpdateFeaturesResponse(error_code=code, error_message=sentence)
    return _response(message, code, sentence)


def _response(message: UpdateFeaturesRequest, code: ErrorCode, sentence: str | None) -> UpdateFeaturesResponse:
    # All features change, or none: each has the outcome of all.
    results = [UpdatableFeatureResult(one.feature, code, sentence) for one in message.feature_updates]
    return UpdateFeaturesResponse(error_code=code, error_message=sentence, results=results)


APIS: Final[ApiTable] = {ApiKey.UPDATE_FEATURES: Api(update_features, refuse_update_features)}
