"""Requests of handlers and coordinators to the controller, on this broker or on another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from app.metadata.changes.topic_changes import DEFAULT, LeaderEpochs

if TYPE_CHECKING:
    from uuid import UUID

    from app.core.errors import RequestRejected
    from app.metadata.changes.broker_changes import BrokersChanged
    from app.metadata.changes.features import FeatureAsked
    from app.metadata.changes.leader_changes import Election
    from app.metadata.changes.quotas import QuotaOperation
    from app.metadata.changes.reassignments import ReassignmentAnswer, ReassignmentAsked
    from app.metadata.changes.scram_changes import ScramAnswer, ScramAsked
    from app.metadata.changes.token_changes import MadeToken, TokenAsked
    from app.metadata.changes.topic_changes import Assignments, ConfigChange
    from app.metadata.image.image import TopicImage
    from app.metadata.image.records import QuotaEntity
    from app.security.acls import Acl, AclFilter


class ClusterChanges(Protocol):
    """Changes of the cluster that clients and coordinators ask for.

    When a method returns, the change is durable and in this broker's image. Each raises RequestRejected (nothing changed),
    FencedError (another broker has taken over for good), StorageUnavailable (the outcome is unknown; the image will show it),
    LimitExceeded. The cancellation of a caller does not undo its change.
    """

    async def create_topic(
        self,
        name: str,
        partitions: int = DEFAULT,
        configs: Mapping[str, str | None] | None = None,
        replication_factor: int = DEFAULT,
        *,
        assignments: Assignments | None = None,
        fewer_replicas: bool = False,
        validate_only: bool = False,
    ) -> TopicImage:
        """Create a topic, or only check it (``validate_only``). -1 is the broker's default.

        The default factor, and with ``fewer_replicas`` any, is lowered to the number of live brokers.

        Rejected with INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR,
        INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG or INVALID_REQUEST.
        """
        ...

    async def delete_topic(self, name: str | None = None, *, topic_id: UUID | None = None) -> TopicImage:
        """Delete a topic by name or id. It moves to ``image.deleting``. Returns: the deleted topic.

        Rejected with UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID.
        """
        ...

    async def create_partitions(
        self,
        name: str,
        count: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> TopicImage:
        """Raise a topic's partitions to ``count`` in all.

        Rejected with UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS or INVALID_REPLICA_ASSIGNMENT.
        """
        ...

    async def alter_configs(
        self,
        resource_type: int,
        resource_name: str,
        operations: Sequence[ConfigChange],
        *,
        validate_only: bool = False,
        nothing_tiered: LeaderEpochs | None = None,
    ) -> Mapping[str, str]:
        """Change configs of a topic, a broker, or (a broker named "") all brokers. Returns: the overrides afterwards.

        Rejected with UNKNOWN_TOPIC_OR_PARTITION, BROKER_ID_NOT_REGISTERED, INVALID_CONFIG or INVALID_REQUEST; with
        TierMustBeEmpty unless ``nothing_tiered``, if the caller must ensure an empty tier and keep it empty; with
        LeadersHaveChanged if the leader epochs in ``nothing_tiered`` are not those of the topic.
        """
        ...

    async def replace_configs(
        self,
        resource_type: int,
        resource_name: str,
        configs: Mapping[str, str | None],
        *,
        validate_only: bool = False,
        nothing_tiered: LeaderEpochs | None = None,
    ) -> Mapping[str, str]:
        """Set exactly these overrides (AlterConfigs). Rejected as ``alter_configs``."""
        ...

    async def settle(self) -> None:
        """Wait until the image contains the outcome of all earlier changes, also of those whose outcome was unknown.

        Raises: StorageUnavailable, FencedError.
        """
        ...

    async def allocate_producer_ids(self) -> range:
        """Allocate a block of producer ids. No other caller ever gets them."""
        ...

    async def elect_leaders(
        self, partitions: Sequence[tuple[str, int]] | None, *, unclean: bool = False
    ) -> Sequence[Election]:
        """Have preferred leaders lead. With ``unclean``, let any living replica lead a partition without a leader.

        ``partitions``: by topic and index; None for all. The refusals are in the answer.
        """
        ...

    async def alter_reassignments(
        self, asked: Sequence[ReassignmentAsked], *, allow_factor_change: bool = True
    ) -> Sequence[ReassignmentAnswer]:
        """Begin, replace or cancel reassignments. The refusals are in the answer."""
        ...

    async def update_features(self, asked: Sequence[FeatureAsked], *, validate_only: bool = False) -> None:
        """Change the levels of features: all of them, or none. Rejected with INVALID_REQUEST or INVALID_UPDATE_VERSION."""
        ...

    async def alter_quotas(
        self, entity: QuotaEntity, operations: Sequence[QuotaOperation], *, validate_only: bool = False
    ) -> None:
        """Change limits of an entity. Rejected with INVALID_REQUEST, or INVALID_UPDATE_VERSION below level 2."""

    async def create_acls(self, asked: Sequence[Acl]) -> Sequence[RequestRejected | None]:
        """Add ACLs. The answer has, for each, why it cannot be made, or None. Rejected with UNSUPPORTED_VERSION below level 2,
        INVALID_REQUEST or POLICY_VIOLATION for too many."""
        ...

    async def delete_acls(self, asked: Sequence[AclFilter]) -> Sequence[list[Acl] | RequestRejected]:
        """Delete the ACLs that filters match. The answer has, for each filter, the deleted ACLs, or why it is invalid. Rejected
        with INVALID_REQUEST for too many."""

    async def alter_scram_users(self, asked: Sequence[ScramAsked], secret: bytes) -> Sequence[ScramAnswer]:
        """Add, change and remove SCRAM credentials. The refusals are in the answer.

        ``secret``: random bytes that cannot be guessed, kept if the cluster has none yet. Rejected with UNSUPPORTED_VERSION at a
        level below ``SECURITY_LEVEL``.
        """
        ...

    async def make_first_users(self, asked: Sequence[ScramAsked], secret: bytes) -> Sequence[ScramAnswer]:
        """As ``alter_scram_users``, for users that were left in this broker's data directory. All have a ``credential``."""
        ...

    async def create_token(self, token_id: str, asked: TokenAsked) -> MadeToken:
        """Make a delegation token. Rejected with UNSUPPORTED_VERSION below level 2, INVALID_PRINCIPAL_TYPE, INVALID_REQUEST, or
        POLICY_VIOLATION for too many."""
        ...

    async def renew_token(self, token_id: str | None, principal: str, period_ms: int) -> int:
        """Let a delegation token last longer. None: there is no such token. Returns: its new end.

        Rejected with DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_EXPIRED or DELEGATION_TOKEN_OWNER_MISMATCH.
        """
        ...

    async def expire_token(self, token_id: str | None, principal: str, period_ms: int) -> int:
        """Let a delegation token end in ``period_ms``, or at once. Returns: its new end. Rejected as ``renew_token``."""
        ...

    async def unregister_broker(self, broker_id: int) -> BrokersChanged:
        """Take a broker out of the cluster. Rejected with BROKER_ID_NOT_REGISTERED, or INVALID_REQUEST in a cluster of one."""
        ...
