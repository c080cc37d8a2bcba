"""Passes changes of the image on to the parts that do not read the image themselves: settings, quotas, access rules.

Tests: ``tests/broker/test_settings_of_cluster.py``, ``tests/broker/test_quotas.py``, ``tests/broker/test_authorisation.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.broker.composing.node_seams import NodeSeams
from app.broker.security.connection_limits import admission_limits
from app.configs import BrokerConfig
from app.core.metrics import Registry
from app.handlers.base.context import Context
from app.handlers.policy.client_quotas import ClientQuotas
from app.handlers.serving.server import KafkaServer
from app.metadata.changes.quotas import TIER_ENTITY, TIER_RATE
from app.metadata.image.image import ClusterImage, ImageDelta

if TYPE_CHECKING:
    from app.broker.quota_tokens import QuotaTokens
    from app.broker.replication.followers import Followers
    from app.broker.security.listener_doors import Doors


class FollowingSettings:
    """``begin`` it once all parts are there."""

    def __init__(
        self,
        config: BrokerConfig,
        around: NodeSeams,
        registry: Registry,
        *,
        context: Context,
        server: KafkaServer,
        doors: Doors | None,
        followers: Followers | None,
        tokens: QuotaTokens | None,
    ) -> None:
        """``doors``: None if all listeners are plain. ``followers``: None on a broker that is alone. ``tokens``: None if all limits
        are this broker's."""
        self._config = config
        self._around = around
        self._registry = registry
        self._context = context
        self._server = server
        self._doors = doors
        self._followers = followers
        self._tokens = tokens
        self._quotas: ClientQuotas | None = None
        """None while there has been no limit."""

    def begin(self) -> None:
        """Apply the present image, and follow it from now on."""
        cluster = self._context.cluster
        cluster.on_change(self._follow_acls)
        cluster.on_change(self._follow_leaders)
        cluster.on_change(self._follow_settings)
        self._apply_settings()
        self._apply_quotas()

    def forget_deleted(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Requests for deleted topics are not recognised any more. To be called after the partitions have followed."""
        if not all(topic_id in image.topics_by_id for topic_id in delta.topics):
            self._server.produce_shapes.forget_closed()

    def _follow_acls(self, image: ClusterImage, delta: ImageDelta) -> None:
        """From now on decide by the new rules. Remembered decisions and parked requests are authorised again."""
        authorizer = self._context.authorizer
        if delta.acls and authorizer is not None and authorizer.follow(image.acls):
            self._context.rights.end()
            self._server.produce_shapes.forget_closed()

    def _follow_leaders(self, image: ClusterImage, delta: ImageDelta) -> None:
        if delta.topics or delta.brokers:
            self._context.parked_followers.leaders_changed()

    def _follow_settings(self, image: ClusterImage, delta: ImageDelta) -> None:
        if delta.broker_configs:
            self._apply_settings()
        if delta.quotas:
            self._apply_quotas()

    def _apply_settings(self) -> None:
        """Pass dynamically changed settings to the parts that do not read them themselves."""
        context = self._context
        context.effective = effective = context.cluster.effective_broker_config()
        context.logs.producer_expiration_ms = effective.producer_id_expiration_ms
        self._server.limit_connections(admission_limits(effective, self._around.descriptors_max))
        if self._doors is not None:
            self._doors.follow(effective.security)
        context.leader_throttle.limit = effective.leader_replication_throttled_rate
        if self._followers is not None:
            self._followers.throttle.limit = effective.follower_replication_throttled_rate

    def _apply_quotas(self) -> None:
        """Apply the limits of the image. Without limits nothing is counted."""
        context = self._context
        limits = context.image.quotas
        context.remote_log_manager.limit_copies(limits.get(TIER_ENTITY, {}).get(TIER_RATE))
        if limits:
            if self._quotas is None:
                leases = self._tokens.leases if self._tokens is not None else None
                self._quotas = ClientQuotas(self._config, self._around.elapsed_s, leases)
                self._quotas.waits.register(self._registry)
            self._quotas.follow(limits)
        context.quotas = self._quotas if limits else None
