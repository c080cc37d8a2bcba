"""Requests of administrators: topics, partitions, settings, and Firn's own requests about metrics and tiers.

Changes go to the controller; a refusal is raised as RequestRejected with the broker's own sentence where it gives one.

Tests: ``tests/client/test_with_broker.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from app.client.cluster import ClusterClient, KnownCluster, TopicView, check_code, refusal
from app.client.connection import KafkaConnection
from app.client.retry import retrying
from app.core.errors import RETRIABLE, BrokerUnavailable, ErrorCode, FirnError, RequestRejected
from app.core.turns import Portion, run, slices
from app.core.units import NO_TOPIC_ID, BrokerId, Offset, PartitionIndex, TopicId, TopicPartition
from app.metadata.image.records import LEVEL_FEATURE, REQUESTS_LEVEL
from app.security.acls import Acl, AclFilter, Operation, Pattern, Rule
from app.wire import private
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    EntityData,
    OpData,
)
from app.wire.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from app.wire.apis.create_acls import AclCreation, CreateAclsRequest
from app.wire.apis.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from app.wire.apis.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from app.wire.apis.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from app.wire.apis.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from app.wire.apis.delete_topics import DeleteTopicsRequest, DeleteTopicState
from app.wire.apis.describe_acls import DescribeAclsRequest
from app.wire.apis.describe_client_quotas import DescribeClientQuotasRequest
from app.wire.apis.describe_cluster import DescribeClusterRequest
from app.wire.apis.describe_configs import DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResult
from app.wire.apis.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from app.wire.apis.elect_leaders import ElectLeadersRequest, TopicPartitions
from app.wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from app.wire.apis.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.apis.unregister_broker import UnregisterBrokerRequest
from app.wire.apis.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from app.wire.config_resources import ConfigOperation, ConfigResourceType

T = TypeVar("T")

TIMEOUT_MS: Final = 30_000
TOPICS_ASKED_MAX: Final = 500
"""Topics that one request asks for."""


CONFIG_SOURCES: Final[Mapping[int, str]] = {
    0: "UNKNOWN",
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "CLIENT_METRICS_CONFIG",
    8: "GROUP_CONFIG",
}


DEFAULT_CONFIG: Final = 5
_LEFT_OUT: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
"""Codes of topics that a list goes without."""


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One effective setting of a topic or broker."""

    name: str
    value: str | None
    source: str
    is_default: bool
    read_only: bool
    sensitive: bool
    documentation: str | None
    synonyms: tuple[ConfigSynonym, ...]


def otherwise(entry: ConfigEntry) -> ConfigSynonym | None:
    """The value that a setting would have without the one in effect. It may have another name and unit (``log.retention.hours``).
    None if the broker does not tell."""
    return next((one for one in entry.synonyms if one.source != entry.source and one.value is not None), None)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    name: str
    topic_id: TopicId
    partitions_count: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class ScramUser:
    """A user who may log in by SCRAM."""

    name: str
    mechanisms: tuple[tuple[int, int], ...]
    """The number of each mechanism, and its iterations."""


class AdminClient:
    """Administration of a cluster over one ``ClusterClient``."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def describe_cluster(self) -> KnownCluster:
        """The cluster, its brokers and all topics, as of now. Raises: BrokerUnavailable."""
        return await self._retrying(self._cluster.refresh)

    async def describe_brokers(self) -> KnownCluster:
        """The cluster and its brokers as of now. Topics in it may be older, or absent. Raises: BrokerUnavailable."""
        return await self._retrying(lambda: self._cluster.refresh([]))

    async def describe_topic(self, name: str) -> TopicView:
        """One topic as of now. Raises: RequestRejected UNKNOWN_TOPIC_OR_PARTITION, BrokerUnavailable."""

        async def ask() -> TopicView:
            return (await self._cluster.refresh([name])).topics[name]

        return await self._retrying(ask, also_final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}))

    async def topic_names(
        self, *, contains: str = "", after: str = "", limit: int = private.TOPIC_NAMES_MAX, internal: bool = False
    ) -> private.TopicsResponse:
        """A page of the names of topics that this user may describe, in their order, as of now. The broker filters and sorts. An
        older broker is asked for all topics instead.

        Raises: BrokerUnavailable, ProtocolError.
        """
        asked = private.TopicsRequest(contains, after, limit, internal)

        async def ask() -> private.TopicsResponse:
            connection = await self._cluster.any_broker()
            if (
                connection.supported.get(LEVEL_FEATURE, 0) < REQUESTS_LEVEL
            ):  # its program is of the release before FirnTopics
                topics = (await self._cluster.refresh()).topics.values()
                every = ((one.name, one.internal) for one in topics)
                return await run(private.topics_page_steps(asked, every, lambda _: True))
            return private.unpack(
                private.TopicsResponse, await connection.request(ApiKey.FIRN_TOPICS, private.pack(asked))
            )

        return await self._retrying(ask)

    async def partition_counts(self, names: Sequence[str]) -> dict[str, int]:
        """How many partitions each topic has, as of now. Raises and leaves out: as ``describe_topics``."""
        return {name: len(topic.partitions) for name, topic in (await self.describe_topics(names)).items()}

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicView]:
        """Some topics as of now. Topics that are not there are left out, and those that this user may not describe.

        Raises: RequestRejected, BrokerUnavailable.
        """
        found: dict[str, TopicView] = {}
        for some in slices(names, TOPICS_ASKED_MAX):
            try:
                await self._retrying(partial(self._cluster.refresh, some), also_final=frozenset(_LEFT_OUT))
            except RequestRejected as error:
                if error.code not in _LEFT_OUT:
                    raise
            known = self._cluster.view.topics
            found |= {name: known[name] for name in some if name in known}
        return found

    async def topic_operations(self, name: str) -> list[int]:
        """The operations that this user may do with a topic (KIP-430), by Kafka's numbers.

        Raises: RequestRejected UNKNOWN_TOPIC_OR_PARTITION…, BrokerUnavailable.
        """
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name)],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )

        async def ask() -> list[int]:
            answer = await (await self._cluster.any_broker()).request(ApiKey.METADATA, request)
            (topic,) = answer.topics
            check_code(topic.error_code, None, name)
            return [bit for bit in range(31) if topic.topic_authorized_operations >> bit & 1]

        return await self._retrying(ask, also_final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}))

    async def create_topic(
        self,
        name: str,
        *,
        partitions_count: int = -1,
        replication_factor: int = -1,
        assignments: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str | None] | None = None,
        validate_only: bool = False,
    ) -> CreatedTopic:
        """Create a topic; -1 is the broker's default. ``assignments`` has the brokers of each partition, and goes without counts.

        Raises: RequestRejected (TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_CONFIG, INVALID_PARTITIONS…: nothing
        was created), BrokerUnavailable (it may have been).
        """
        placed: list[CreatableReplicaAssignment] = []
        portion = Portion()
        for partition, brokers in (assignments or {}).items():
            placed.append(CreatableReplicaAssignment(partition_index=partition, broker_ids=list(brokers)))
            if portion.spent_by(len(brokers)):
                await portion.rest()
        if placed:
            await portion.rest()  # the request is encoded at once
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions_count,
            replication_factor=replication_factor,
            assignments=placed,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=validate_only)

        async def ask() -> CreatedTopic:
            answer = await (await self._controller()).request(ApiKey.CREATE_TOPICS, request)
            (result,) = answer.topics
            check_code(result.error_code, result.error_message, name)
            topic_id = TopicId(result.topic_id)
            return CreatedTopic(name, topic_id, result.num_partitions, result.replication_factor)

        return await self._retrying(ask)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its data. Raises: RequestRejected UNKNOWN_TOPIC_OR_PARTITION, BrokerUnavailable."""
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name, topic_id=NO_TOPIC_ID)], topic_names=[name], timeout_ms=TIMEOUT_MS
        )

        async def ask() -> None:
            answer = await (await self._controller()).request(ApiKey.DELETE_TOPICS, request)
            (result,) = answer.responses
            check_code(result.error_code, result.error_message, name)

        await self._retrying(ask, also_final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}))
        self._cluster.forget(name)

    async def create_partitions(self, name: str, partitions_count: int, *, validate_only: bool = False) -> None:
        """Raise a topic's partition count to ``partitions_count``. Raises: RequestRejected, BrokerUnavailable."""
        topic = CreatePartitionsTopic(name=name, count=partitions_count, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=validate_only)

        async def ask() -> None:
            answer = await (await self._controller()).request(ApiKey.CREATE_PARTITIONS, request)
            (result,) = answer.results
            check_code(result.error_code, result.error_message, name)

        await self._retrying(ask, also_final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}))
        self._cluster.forget(name)

    async def describe_configs(
        self, kind: ConfigResourceType, name: str, *, names: Sequence[str] | None = None, documentation: bool = False
    ) -> list[ConfigEntry]:
        """Effective settings of a topic or broker, all or ``names``, by name. Raises: RequestRejected, BrokerUnavailable."""
        resource = DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None if names is None else list(names)
        )
        request = DescribeConfigsRequest(
            resources=[resource], include_synonyms=True, include_documentation=documentation
        )

        async def ask() -> list[ConfigEntry]:
            connection = await self._for_resource(kind, name)
            answer = await connection.request(ApiKey.DESCRIBE_CONFIGS, request)
            (result,) = answer.results
            check_code(result.error_code, result.error_message, name)
            return _entries(result)

        return await self._retrying(ask, also_final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}))

    async def describe_topics_configs(
        self, names: Sequence[str], settings: Sequence[str] | None = None
    ) -> dict[str, list[ConfigEntry]]:
        """Effective settings of some topics: all, or ``settings``. Topics that were deleted meanwhile are left out, and those whose
        settings this user may not see. Raises: RequestRejected, BrokerUnavailable."""
        keys = None if settings is None else list(settings)
        resources = [
            DescribeConfigsResource(resource_type=ConfigResourceType.TOPIC, resource_name=name, configuration_keys=keys)
            for name in names
        ]
        request = DescribeConfigsRequest(resources=resources, include_synonyms=True)

        async def ask() -> dict[str, list[ConfigEntry]]:
            answer = await (await self._cluster.any_broker()).request(ApiKey.DESCRIBE_CONFIGS, request)
            found: dict[str, list[ConfigEntry]] = {}
            portion = Portion()
            for result in answer.results:
                if result.error_code not in _LEFT_OUT:
                    check_code(result.error_code, result.error_message, result.resource_name)
                    found[result.resource_name] = _entries(result)
                await portion.rest_if_spent()
            return found

        return await self._retrying(ask)

    async def default_topic_configs(self, name: str) -> list[ConfigEntry]:
        """The settings that a topic of that name would have if it were made now, by name. Synonyms are not known.

        Raises: RequestRejected TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION…; BrokerUnavailable.
        """
        topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=True)

        async def ask() -> list[ConfigEntry]:
            answer = await (await self._controller()).request(ApiKey.CREATE_TOPICS, request)
            (result,) = answer.topics
            check_code(result.error_code, result.error_message, name)
            check_code(result.topic_config_error_code, None, name)
            found = [
                ConfigEntry(
                    entry.name,
                    entry.value,
                    CONFIG_SOURCES.get(entry.config_source, "UNKNOWN"),
                    entry.config_source == DEFAULT_CONFIG,
                    entry.read_only,
                    entry.is_sensitive,
                    None,
                    (),
                )
                for entry in result.configs or ()
            ]
            return sorted(found, key=lambda entry: entry.name)

        return await self._retrying(ask)

    async def alter_configs(
        self,
        kind: ConfigResourceType,
        name: str,
        changes: Sequence[tuple[str, ConfigOperation, str | None]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Change some settings and leave the others (KIP-339).

        Raises: RequestRejected INVALID_CONFIG…, BrokerUnavailable.
        """
        configs = [
            AlterableConfig(name=setting, config_operation=operation, value=value)
            for setting, operation, value in changes
        ]
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)

        async def ask() -> None:
            connection = await self._for_resource(kind, name)
            answer = await connection.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)
            (result,) = answer.responses
            check_code(result.error_code, result.error_message, name)

        await self._retrying(ask, also_final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}))

    async def alter_topics_configs(
        self, changes: Mapping[str, Sequence[tuple[str, ConfigOperation, str | None]]], *, validate_only: bool = False
    ) -> dict[str, RequestRejected]:
        """Change some settings of several topics, each topic as a whole or not at all.

        Returns: the topics that were refused, with the reason. Raises: RequestRejected, BrokerUnavailable; then some of the topics
        may have been changed.
        """
        resources = [
            AlterConfigsResource(
                resource_type=ConfigResourceType.TOPIC,
                resource_name=name,
                configs=[AlterableConfig(setting, operation, value) for setting, operation, value in of_topic],
            )
            for name, of_topic in changes.items()
        ]
        request = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)

        async def ask() -> dict[str, RequestRejected]:
            answer = await (await self._cluster.any_broker()).request(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)
            refused: dict[str, RequestRejected] = {}
            for one in answer.responses:
                if one.error_code and one.error_code in RETRIABLE - {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
                    raise refusal(one.error_code, one.resource_name, one.error_message)
                if one.error_code:
                    refused[one.resource_name] = refusal(one.error_code, one.resource_name, one.error_message)
            return refused

        return await self._retrying(ask)

    async def delete_records(self, partition: TopicPartition, before: Offset) -> Offset:
        """Delete a partition's records below ``before`` (-1: all) and return its new start.

        Raises: RequestRejected OFFSET_OUT_OF_RANGE…, BrokerUnavailable.
        """
        part = DeleteRecordsPartition(partition_index=partition.partition, offset=before)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=partition.topic, partitions=[part])], timeout_ms=TIMEOUT_MS
        )

        async def ask() -> Offset:
            answer = await (await self._cluster.leader(partition)).request(ApiKey.DELETE_RECORDS, request)
            result = answer.topics[0].partitions[0]
            check_code(result.error_code, None, str(partition))
            return Offset(result.low_watermark)

        return await self._retrying(ask, refresh=partition.topic)

    # --- rights -----------------------------------------------------------------------------------------------------

    async def create_acls(self, acls: Sequence[Acl]) -> None:
        """Add ACLs; those that are there stay. Raises: RequestRejected for the first that is refused, BrokerUnavailable."""
        creations = [AclCreation(kind, name, pattern_type, *rule) for (kind, pattern_type, name), rule in acls]

        async def ask() -> None:
            answer = await (await self._controller()).request(ApiKey.CREATE_ACLS, CreateAclsRequest(creations))
            for result in answer.results:
                check_code(result.error_code, result.error_message, "the ACL")

        await self._retrying(ask)

    async def describe_acls(self, wanted: AclFilter) -> list[Acl]:
        """The ACLs that a filter matches. Raises: RequestRejected SECURITY_DISABLED…, BrokerUnavailable."""

        async def ask() -> list[Acl]:
            connection = await self._cluster.any_broker()
            answer = await connection.request(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(*wanted))
            check_code(answer.error_code, answer.error_message, "ACLs")
            found: list[Acl] = []
            portion = Portion()
            for one in answer.resources:
                pattern = Pattern(one.resource_type, one.pattern_type, one.resource_name)
                for rule in one.acls:
                    found.append(Acl(pattern, Rule(rule.principal, rule.host, rule.operation, rule.permission_type)))
                    if portion.spent_by():
                        await portion.rest()
            return found

        return await self._retrying(ask)

    async def delete_acls(self, wanted: Sequence[AclFilter]) -> list[Acl]:
        """Delete the ACLs that match any filter. Returns: the deleted ACLs. Raises: RequestRejected, BrokerUnavailable."""
        filters = [DeleteAclsFilter(*one) for one in wanted]

        async def ask() -> list[Acl]:
            answer = await (await self._controller()).request(ApiKey.DELETE_ACLS, DeleteAclsRequest(filters))
            deleted: dict[Acl, None] = {}
            portion = Portion()
            for result in answer.filter_results:
                check_code(result.error_code, result.error_message, "the filter")
                for one in result.matching_acls:
                    pattern = Pattern(one.resource_type, one.pattern_type, one.resource_name)
                    deleted[Acl(pattern, Rule(one.principal, one.host, one.operation, one.permission_type))] = None
                    if portion.spent_by():
                        await portion.rest()
            return list(deleted)

        return await self._retrying(ask)

    # --- brokers and replicas -------------------------------------------------------------------------------------

    async def update_feature(self, name: str, level: int, *, validate_only: bool = False) -> None:
        """Raise a feature's level (KIP-584). Raises: RequestRejected INVALID_UPDATE_VERSION…, BrokerUnavailable."""
        request = UpdateFeaturesRequest(
            timeout_ms=TIMEOUT_MS,
            feature_updates=[FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=1)],
            validate_only=validate_only,
        )

        async def ask() -> None:
            answer = await (await self._controller()).request(ApiKey.UPDATE_FEATURES, request)
            check_code(answer.error_code, answer.error_message, name)

        await self._retrying(ask)

    async def describe_users(self) -> list[ScramUser]:
        """Every user who may log in by SCRAM. Raises: RequestRejected, BrokerUnavailable."""

        async def ask() -> list[ScramUser]:
            connection = await self._cluster.any_broker()
            request = DescribeUserScramCredentialsRequest(users=None)
            answer = await connection.request(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, request)
            check_code(answer.error_code, answer.error_message, "the users")
            found: list[ScramUser] = []
            portion = Portion()
            for one in answer.results:
                mechanisms = tuple((int(info.mechanism), int(info.iterations)) for info in one.credential_infos)
                found.append(ScramUser(one.user, mechanisms))
                if portion.spent_by():
                    await portion.rest()
            return found

        return await self._retrying(ask)

    async def describe_quotas(self) -> list[tuple[dict[str, str | None], dict[str, float]]]:
        """Every entity with limits: its parts (None for the default of a type), and the limits. Raises: BrokerUnavailable."""

        async def ask() -> list[tuple[dict[str, str | None], dict[str, float]]]:
            connection = await self._controller()
            answer = await connection.request(ApiKey.DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest())
            check_code(answer.error_code, answer.error_message, "quotas")
            return [
                (
                    {part.entity_type: part.entity_name for part in one.entity},
                    {limit.key: limit.value for limit in one.values},
                )
                for one in answer.entries or ()
            ]

        return await self._retrying(ask)

    async def alter_quotas(self, entity: Mapping[str, str | None], limits: Mapping[str, float | None]) -> None:
        """Set limits of an entity, or (None) take them away. Raises: RequestRejected INVALID_REQUEST…, BrokerUnavailable."""
        entry = AlterClientQuotasRequestEntryData(
            [EntityData(*part) for part in entity.items()],
            [OpData(key, value or 0.0, value is None) for key, value in limits.items()],
        )

        async def ask() -> None:
            connection = await self._controller()
            answer = await connection.request(ApiKey.ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest([entry]))
            check_code(answer.entries[0].error_code, answer.entries[0].error_message, "quotas")

        await self._retrying(ask)

    async def unregister_broker(self, node_id: int) -> None:
        """Take a broker out of the cluster. Raises: RequestRejected BROKER_ID_NOT_REGISTERED…, BrokerUnavailable."""
        request = UnregisterBrokerRequest(broker_id=node_id)

        async def ask() -> None:
            answer = await (await self._controller()).request(ApiKey.UNREGISTER_BROKER, request)
            check_code(answer.error_code, answer.error_message, f"broker {node_id}")

        await self._retrying(ask)

    async def alter_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, RequestRejected]:
        """Give partitions other replicas, the preferred leader first, or cancel (None) their reassignment (KIP-455).

        Returns: the partitions that were refused, with the reason. The others are under way. Raises: RequestRejected,
        BrokerUnavailable.
        """
        topics: dict[str, ReassignableTopic] = {}
        for partition, replicas in targets.items():
            topic = topics.setdefault(partition.topic, ReassignableTopic(name=partition.topic))
            topic.partitions.append(
                ReassignablePartition(
                    partition_index=partition.partition, replicas=None if replicas is None else list(replicas)
                )
            )
        request = AlterPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=list(topics.values()))

        async def ask() -> dict[TopicPartition, RequestRejected]:
            answer = await (await self._controller()).request(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request)
            check_code(answer.error_code, answer.error_message, "the reassignment")
            refused: dict[TopicPartition, RequestRejected] = {}
            for told in answer.responses:
                for one in told.partitions:
                    if one.error_code:
                        partition = TopicPartition(told.name, PartitionIndex(one.partition_index))
                        refused[partition] = refusal(one.error_code, str(partition), one.error_message)
            return refused

        return await self._retrying(ask)

    async def list_reassignments(
        self, partitions: Mapping[str, Sequence[int]] | None = None
    ) -> dict[TopicPartition, tuple[list[int], list[int]]]:
        """The replicas that are being added and removed, of each partition that moves; of all, or of some partitions of topics.

        Raises: RequestRejected, BrokerUnavailable.
        """
        topics = None
        if partitions is not None:
            topics = [ListPartitionReassignmentsTopics(name, list(some)) for name, some in partitions.items()]
        request = ListPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=topics)

        async def ask() -> dict[TopicPartition, tuple[list[int], list[int]]]:
            answer = await (await self._controller()).request(ApiKey.LIST_PARTITION_REASSIGNMENTS, request)
            check_code(answer.error_code, answer.error_message, "the list of reassignments")
            found: dict[TopicPartition, tuple[list[int], list[int]]] = {}
            portion = Portion()
            for told in answer.topics:
                for one in told.partitions:
                    partition = TopicPartition(told.name, PartitionIndex(one.partition_index))
                    found[partition] = (one.adding_replicas, one.removing_replicas)
                    if portion.spent_by():
                        await portion.rest()
            return found

        return await self._retrying(ask)

    async def elect_preferred_leaders(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, str]:
        """Let preferred leaders lead again (KIP-460). Returns: the partitions whose election was refused, with the reason. Raises:
        RequestRejected, BrokerUnavailable."""
        topics: dict[str, TopicPartitions] = {}
        for partition in partitions:
            topics.setdefault(partition.topic, TopicPartitions(topic=partition.topic)).partitions.append(
                partition.partition
            )
        request = ElectLeadersRequest(election_type=0, topic_partitions=list(topics.values()), timeout_ms=TIMEOUT_MS)

        async def ask() -> dict[TopicPartition, str]:
            answer = await (await self._controller()).request(ApiKey.ELECT_LEADERS, request)
            check_code(answer.error_code, None, "the election")
            return {
                TopicPartition(told.topic, PartitionIndex(one.partition_id)): one.error_message or ""
                for told in answer.replica_election_results
                for one in told.partition_result
                if one.error_code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
            }

        return await self._retrying(ask)

    async def cluster_standing(
        self, *, controller_s: float | None = None, leaving: int = -1
    ) -> private.ClusterResponse:
        """How the cluster stands: by the controller if it responds, within ``controller_s`` seconds if they are given, else by any
        broker. ``leaving``: a broker that is to stop, whose replicas need not be in sync.

        Raises: BrokerUnavailable, RequestRejected, ProtocolError.
        """
        view = await self._retrying(lambda: self._cluster.refresh([]))
        controller = view.controller
        if controller is not None and controller in view.brokers and not self._cluster.is_silent(controller):
            try:
                async with asyncio.timeout(controller_s):
                    return await self.cluster_standing_by(await self._cluster.broker(controller), leaving)
            except (BrokerUnavailable, TimeoutError):
                pass  # any other knows all but how far the others are
        return await self.cluster_standing_by(await self._cluster.any_broker(), leaving)

    async def cluster_standing_by(self, connection: KafkaConnection, leaving: int = -1) -> private.ClusterResponse:
        """The state of the cluster, as one broker knows it. Raises: as ``cluster_standing``."""
        answer = await connection.request(ApiKey.FIRN_CLUSTER, private.pack(private.ClusterRequest(leaving)))
        return private.unpack(private.ClusterResponse, answer)

    # --- Firn's own -----------------------------------------------------------------------------------------------

    async def check_may(self, operation: Operation) -> None:
        """Whether this user may do that with the cluster. For requests whose refusal ends the connection.

        Raises: RequestRejected CLUSTER_AUTHORIZATION_FAILED, BrokerUnavailable.
        """

        async def ask() -> None:
            request = DescribeClusterRequest(include_cluster_authorized_operations=True)
            answer = await (await self._cluster.any_broker()).request(ApiKey.DESCRIBE_CLUSTER, request)
            check_code(answer.error_code, answer.error_message, "the cluster")
            if not answer.cluster_authorized_operations & 1 << operation:
                raise RequestRejected(
                    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                    f"The user has no right to {operation.name.lower()} the cluster.",
                )

        await self._retrying(ask)

    async def metrics(
        self, connection: KafkaConnection, names: Collection[str] | None = None
    ) -> private.MetricsResponse:
        """The samples with these names of one broker's processes; None for all.

        Raises: BrokerUnavailable, RequestRejected, ProtocolError.
        """
        request = private.MetricsRequest(sorted(names or ()))
        answer = await connection.request(ApiKey.FIRN_METRICS, private.pack(request))
        return await run(private.unpack_metrics_steps(answer, names))

    async def drain(self, connection: KafkaConnection, step: str) -> private.DrainResponse:
        """One step of a drain of one broker, and how far that is. Raises: BrokerUnavailable, ProtocolError."""
        answer = await connection.request(ApiKey.FIRN_DRAIN, private.pack(private.DrainRequest(step)))
        return private.unpack(private.DrainResponse, answer)

    async def metrics_of_all(self, names: Collection[str] | None = None) -> dict[int, private.MetricsResponse]:
        """The samples with these names of every broker that is there, by node id; None for all.

        Raises: RequestRejected CLUSTER_AUTHORIZATION_FAILED, BrokerUnavailable.
        """

        async def of_broker(node_id: BrokerId) -> private.MetricsResponse:
            try:
                return await self.metrics(await self._cluster.broker(node_id), names)
            except BrokerUnavailable:
                await self.check_may(Operation.DESCRIBE)  # a broker closes the connection of those who may not
                raise

        async def ask() -> dict[int, private.MetricsResponse]:
            view = await self._cluster.refresh([])
            return {int(node_id): await of_broker(node_id) for node_id in view.brokers}

        return await self._retrying(ask)

    async def tier_status(self, topics: Sequence[str] = ()) -> list[private.PartitionTierStatus]:
        """Where the bytes of partitions are, by topic and partition; ``topics`` empty is all.

        Every broker answers for the partitions it leads. Raises: RequestRejected UNKNOWN_TOPIC_OR_PARTITION for a topic that
        is not there, BrokerUnavailable.
        """
        answers = await self.tier_answers(topics)
        found = [one for answer in answers.values() for one in answer.partitions]
        return sorted(found, key=lambda status: (status.topic, status.partition))

    async def tier_answers(
        self, topics: Sequence[str] = (), *, replicas: bool = False
    ) -> dict[int, private.TierStatusResponse]:
        """The state of each broker and of the tiers of the partitions that it leads, by node id. With ``replicas`` also of those
        that it follows.

        Raises: as ``tier_status``.
        """

        async def ask() -> dict[int, private.TierStatusResponse]:
            view = await self._cluster.refresh(topics or None)
            return {
                int(node_id): await self.tier_status_by(await self._cluster.broker(node_id), topics, replicas=replicas)
                for node_id in view.brokers
            }

        return await self._retrying(ask, also_final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}))

    async def tier_answer_of(
        self, connection: KafkaConnection, topics: Sequence[str] = (), *, replicas: bool = False
    ) -> private.TierStatusResponse:
        """The state of the broker at the other end of a connection, and of its tiers. Raises: as ``tier_status``."""
        await self._cluster.refresh(topics or None)
        return await self.tier_status_by(connection, topics, replicas=replicas)

    async def tier_status_by(
        self, connection: KafkaConnection, topics: Sequence[str], *, replicas: bool = False
    ) -> private.TierStatusResponse:
        """As ``tier_answer_of``, for topics that are known to be there. Raises: as ``tier_status``."""
        body = private.pack(private.TierStatusRequest(list(topics), replicas))
        return private.unpack(private.TierStatusResponse, await connection.request(ApiKey.FIRN_TIER_STATUS, body))

    async def tier_replace(self, partition: TopicPartition, request: private.TierReplaceRequest) -> None:
        """One step of a compaction. Raises: RequestRejected (OPERATION_NOT_ATTEMPTED: the inputs
        have changed), BrokerUnavailable."""

        async def ask() -> None:
            connection = await self._cluster.leader(partition)
            answer = await connection.request(ApiKey.FIRN_TIER_REPLACE, private.pack(request))
            told = private.unpack(private.TierReplaceResponse, answer)
            if told.error_code:
                raise RequestRejected(ErrorCode(told.error_code), told.error)

        await self._retrying(ask, refresh=partition.topic, also_final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}))

    async def tier_segments(self, partition: TopicPartition) -> list[private.SegmentInfo]:
        """Every segment of a partition, of both tiers, in order.

        Raises: RequestRejected (unknown partition, or its leader cannot say), BrokerUnavailable.
        """

        async def ask() -> list[private.SegmentInfo]:
            connection = await self._cluster.leader(partition)
            segments: list[private.SegmentInfo] = []
            from_offset = 0
            while from_offset >= 0:
                request = private.TierSegmentsRequest(partition.topic, partition.partition, from_offset)
                answer = await connection.request(ApiKey.FIRN_TIER_SEGMENTS, private.pack(request))
                part = private.unpack(private.TierSegmentsResponse, answer)
                if part.error:
                    raise RequestRejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, part.error)
                segments.extend(part.segments)
                from_offset = part.more_from_offset
            return segments

        return await self._retrying(
            ask, refresh=partition.topic, also_final=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
        )

    # --- who to ask -----------------------------------------------------------------------------------------------

    async def _controller(self) -> KafkaConnection:
        if self._cluster.view.controller is None:
            await self._cluster.refresh([])
        controller = self._cluster.view.controller
        if controller is None or controller not in self._cluster.view.brokers:
            return await self._cluster.any_broker()
        return await self._cluster.broker(controller)

    async def _for_resource(self, kind: ConfigResourceType, name: str) -> KafkaConnection:
        if kind is ConfigResourceType.BROKER and name:
            if BrokerId(int(name)) not in self._cluster.view.brokers:
                await self._cluster.refresh([])
            return await self._cluster.broker(BrokerId(int(name)))
        return await self._cluster.any_broker()

    async def _retrying(
        self,
        ask: Callable[[], Awaitable[T]],
        *,
        refresh: str | None = None,
        also_final: frozenset[ErrorCode] = frozenset(),
    ) -> T:
        async def before_retry(error: FirnError) -> None:
            await self._cluster.refresh([] if refresh is None else [refresh])

        # Whether a change was made is not known then. To ask again is for the caller, as with Kafka's own AdminClient.
        also_final |= {ErrorCode.REQUEST_TIMED_OUT}
        return await retrying(
            ask,
            rng=self._cluster.rng,
            budget_ms=self._cluster.retry_budget_ms,
            before_retry=before_retry,
            also_final=also_final,
        )


def _entries(result: DescribeConfigsResult) -> list[ConfigEntry]:
    """The settings of one resource, by name."""
    found = [
        ConfigEntry(
            entry.name,
            entry.value,
            CONFIG_SOURCES.get(entry.config_source, "UNKNOWN"),
            entry.config_source == DEFAULT_CONFIG,
            entry.read_only,
            entry.is_sensitive,
            entry.documentation or None,
            tuple(
                ConfigSynonym(synonym.name, synonym.value, CONFIG_SOURCES.get(synonym.source, "UNKNOWN"))
                for synonym in entry.synonyms
            ),
        )
        for entry in result.configs
    ]
    return sorted(found, key=lambda entry: entry.name)
