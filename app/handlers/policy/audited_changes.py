"""The changes of administrative requests, as the audit log tells them: one entry for each resource, with its error if it has one.

An entry has the ``type`` and ``name`` of the resource, the ``action``, the arguments of the request, and ``error``. Refusals for
want of a right are left out: they are other events. So are requests that only check. Values of settings that are sensitive, or
unknown, are left out too, and of users nothing but the name is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from app.configs.broker_definitions import BROKER_DEFINITIONS
from app.configs.topic_definitions import TOPIC_DEFINITIONS
from app.core.errors import ErrorCode, ProtocolError
from app.core.units import NO_TOPIC_ID
from app.security.acls import Operation, PatternType, Permission, ResourceType
from app.security.noting import Change, Resource, change, named, short
from app.wire.apikeys import ApiKey

M = TypeVar("M", bound=msgspec.Struct)
Tell = Callable[[Any, Any], list[Change]]
"""(request, response) to the changes. The response is None if the connection is closed instead."""

MISSING_RIGHTS: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)
PARTS_MAX: Final = 20
"""Partitions or settings in one entry. Of further ones the entry has the number."""
CONFIG_TYPES: Final = {2: "TOPIC", 4: "BROKER", 8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: "GROUP"}
OPERATIONS_OF_CONFIGS: Final = {0: "SET", 1: "DELETE", 2: "APPEND", 3: "SUBTRACT"}
SCRAM: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


def _some(items: Sequence[Any]) -> list[Any]:
    """The items that fit into one entry, and the number of the others."""
    shown = list(items[:PARTS_MAX])
    return [*shown, f"and {len(items) - PARTS_MAX} more"] if len(items) > PARTS_MAX else shown


def _told(changes: Iterable[tuple[int, Change]]) -> list[Change]:
    """The changes without those that were refused for want of a right. ``changes``: each with its error code."""
    return [one for code, one in changes if code not in MISSING_RIGHTS]


def shown_value(name: str, value: str | None) -> str | None:
    """The value of a setting, if it is known not to be sensitive."""
    definition = TOPIC_DEFINITIONS.get(name) or BROKER_DEFINITIONS.get(name)
    return None if value is None or definition is None or definition.sensitive else short(value)


# --- topics ---------------------------------------------------------------------------------------------------------


def _create_topics(message: Any, response: Any) -> list[Change]:
    if message.validate_only:
        return []
    asked = {topic.name: topic for topic in message.topics}

    def told(one: Any) -> Change:
        topic = asked.get(one.name)
        configs = [] if topic is None else topic.configs
        return change(
            "TOPIC",
            one.name,
            "CREATE",
            one.error_code,
            partitions=one.num_partitions if topic is None else topic.num_partitions,
            replication_factor=one.replication_factor if topic is None else topic.replication_factor,
            **(
                {"configs": {short(c.name): shown_value(c.name, c.value) for c in configs[:PARTS_MAX]}}
                if configs
                else {}
            ),
        )

    return _told((one.error_code, told(one)) for one in response.topics)


def _delete_topics(message: Any, response: Any) -> list[Change]:
    return _told(
        (one.error_code, change("TOPIC", one.name, "DELETE", one.error_code, topic_id=str(one.topic_id)))
        for one in response.responses
    )


def _create_partitions(message: Any, response: Any) -> list[Change]:
    if message.validate_only:
        return []
    counts = {topic.name: topic.count for topic in message.topics}
    return _told(
        (
            one.error_code,
            change("TOPIC", one.name, "CREATE_PARTITIONS", one.error_code, partitions=counts.get(one.name, -1)),
        )
        for one in response.results
    )


def _delete_records(message: Any, response: Any) -> list[Change]:
    asked = {(topic.name, part.partition_index): part.offset for topic in message.topics for part in topic.partitions}
    return _told(
        (
            part.error_code,
            change(
                "TOPIC",
                topic.name,
                "DELETE_RECORDS",
                part.error_code,
                partition=part.partition_index,
                before_offset=asked.get((topic.name, part.partition_index), -1),
            ),
        )
        for topic in response.topics
        for part in topic.partitions
    )


def _elect(message: Any, response: Any) -> list[Change]:
    kind = "PREFERRED" if message.election_type == 0 else "UNCLEAN"
    if response.error_code:
        return _told(
            [(response.error_code, change("CLUSTER", "", "ELECT_LEADERS", response.error_code, election=kind))]
        )
    return _told(
        (
            part.error_code,
            change("TOPIC", topic.topic, "ELECT_LEADERS", part.error_code, partition=part.partition_id, election=kind),
        )
        for topic in response.replica_election_results
        for part in topic.partition_result
        if part.error_code != ErrorCode.ELECTION_NOT_NEEDED
    )


def _reassign(message: Any, response: Any) -> list[Change]:
    asked = {(topic.name, part.partition_index): part.replicas for topic in message.topics for part in topic.partitions}
    if response.error_code:
        refused = change("CLUSTER", "", "REASSIGN", response.error_code, partitions=len(asked))
        return _told([(response.error_code, refused)])
    return _told(
        (
            part.error_code,
            change(
                "TOPIC",
                topic.name,
                "REASSIGN",
                part.error_code,
                partition=part.partition_index,
                replicas=asked.get((topic.name, part.partition_index)),
            ),
        )
        for topic in response.responses
        for part in topic.partitions
    )


# --- settings, features, brokers ------------------------------------------------------------------------------------


def _alter_configs(message: Any, response: Any) -> list[Change]:
    if message.validate_only:
        return []
    asked = {(one.resource_type, one.resource_name): one.configs for one in message.resources}

    def told(one: Any) -> Change:
        configs = [
            {
                "name": short(config.name),
                "operation": OPERATIONS_OF_CONFIGS.get(getattr(config, "config_operation", 0), "?"),
                "value": shown_value(config.name, config.value),
            }
            for config in asked.get((one.resource_type, one.resource_name), ())
        ]
        kind = CONFIG_TYPES.get(one.resource_type, str(one.resource_type))
        return change(kind, one.resource_name, "ALTER_CONFIGS", one.error_code, configs=_some(configs))

    return _told((one.error_code, told(one)) for one in response.responses)


def _features(message: Any, response: Any) -> list[Change]:
    if message.validate_only:
        return []
    codes = {one.feature: one.error_code for one in response.results}
    found = []
    for update in message.feature_updates:
        code = response.error_code or codes.get(update.feature, 0)
        found.append((code, change("FEATURE", update.feature, "UPDATE", code, level=update.max_version_level)))
    return _told(found)


def _read(kind: type[M], data: bytes | None) -> M | None:
    """A message of Firn's own; None if it is not there, or is none: the handler has said so then."""
    from app.wire.private import unpack

    if data is None:
        return None
    try:
        return unpack(kind, data)
    except ProtocolError:
        return None


def _unregister(message: Any, response: Any) -> list[Change]:
    code = response.error_code
    return _told([(code, change("BROKER", str(message.broker_id), "UNREGISTER", code))])


def _register(message: Any, response: Any) -> list[Change]:
    from app.metadata.peers.control import RegisterRequest, RegisterResponse

    asked, answer = _read(RegisterRequest, message), _read(RegisterResponse, response)
    if asked is None or answer is None or answer.error == ErrorCode.NOT_CONTROLLER:
        return []  # it asks the next one
    code = answer.error
    return _told(
        [(code, change("BROKER", str(asked.broker_id), "REGISTER", code, directory_id=str(asked.directory_id)))]
    )


def _drain(message: Any, response: Any) -> list[Change]:
    from app.wire.private import DrainRequest

    asked = _read(DrainRequest, message)
    if asked is None or response is None or asked.step == "status":
        return []
    return [change("BROKER", "", "DRAIN", step=short(asked.step))]


def _schemas(message: Any, response: Any) -> list[Change]:
    from app.wire.private import SchemasRequest, SchemasResponse

    asked, answer = _read(SchemasRequest, message), _read(SchemasResponse, response)
    if asked is None or answer is None or asked.step != "append" or answer.moved or answer.wait_ms:
        return []
    code = answer.error_code
    told = change("SUBJECT", short(asked.subject or ""), "WRITE_SCHEMAS", code, records=len(asked.records))
    return _told([(code, told)])


def _replace_segments(message: Any, response: Any) -> list[Change]:
    from app.wire.private import TierReplaceRequest, TierReplaceResponse

    asked, answer = _read(TierReplaceRequest, message), _read(TierReplaceResponse, response)
    if asked is None or answer is None:
        return []
    code = answer.error_code
    told = change(
        "TOPIC",
        asked.topic,
        "REPLACE_SEGMENTS",
        code,
        partition=asked.partition,
        step=short(asked.step),
        segments=len(asked.inputs),
    )
    return _told([(code, told)])


# --- security -------------------------------------------------------------------------------------------------------


def _acl(one: Any, pattern_type: int, action: str, error_code: int) -> Change:
    return change(
        named(ResourceType, one.resource_type),
        one.resource_name,
        action,
        error_code,
        pattern=named(PatternType, pattern_type),
        principal=short(one.principal),
        host=short(one.host),
        operation=named(Operation, one.operation),
        permission=named(Permission, one.permission_type),
    )


def _create_acls(message: Any, response: Any) -> list[Change]:
    return _told(
        (answer.error_code, _acl(one, one.resource_pattern_type, "CREATE_ACL", answer.error_code))
        for one, answer in zip(message.creations, response.results, strict=False)
    )


def _delete_acls(message: Any, response: Any) -> list[Change]:
    found: list[tuple[int, Change]] = []
    for answer in response.filter_results:
        if answer.error_code:
            found.append((answer.error_code, change("ACL", None, "DELETE_ACL", answer.error_code)))
        found += [(0, _acl(one, one.pattern_type, "DELETE_ACL", one.error_code)) for one in answer.matching_acls]
    return _told(found)


def _users(message: Any, response: Any) -> list[Change]:
    codes = {one.user: one.error_code for one in response.results}
    asked = [(one, "DELETE_USER") for one in message.deletions] + [(one, "SET_USER") for one in message.upsertions]
    return _told(
        (
            codes.get(one.name, 0),
            change(
                "USER", one.name, action, codes.get(one.name, 0), mechanism=SCRAM.get(one.mechanism, str(one.mechanism))
            ),
        )
        for one, action in asked
    )


def _quotas(message: Any, response: Any) -> list[Change]:
    if message.validate_only:
        return []
    found = []
    for entry, answer in zip(message.entries, response.entries, strict=False):
        name = ",".join(
            f"{part.entity_type}={'<default>' if part.entity_name is None else part.entity_name}"
            for part in entry.entity
        )
        limits = {short(op.key): None if op.remove else repr(op.value) for op in entry.ops[:PARTS_MAX]}
        found.append((answer.error_code, change("QUOTA", name, "ALTER_QUOTA", answer.error_code, limits=limits)))
    return _told(found)


# --- groups ---------------------------------------------------------------------------------------------------------


def _delete_groups(message: Any, response: Any) -> list[Change]:
    return _told((one.error_code, change("GROUP", one.group_id, "DELETE", one.error_code)) for one in response.results)


def _delete_offsets(message: Any, response: Any) -> list[Change]:
    if response.error_code:
        return _told([(response.error_code, change("GROUP", message.group_id, "DELETE_OFFSETS", response.error_code))])
    return _told(
        (
            part.error_code,
            change(
                "GROUP",
                message.group_id,
                "DELETE_OFFSETS",
                part.error_code,
                topic=short(topic.name),
                partition=part.partition_index,
            ),
        )
        for topic in response.topics
        for part in topic.partitions
    )


def _share_offsets(message: Any, response: Any) -> list[Change]:
    if response.error_code:
        return _told([(response.error_code, change("GROUP", message.group_id, "ALTER_OFFSETS", response.error_code))])
    offsets = {
        (topic.topic_name, part.partition_index): part.start_offset
        for topic in message.topics
        for part in topic.partitions
    }
    return _told(
        (
            part.error_code,
            change(
                "GROUP",
                message.group_id,
                "ALTER_OFFSETS",
                part.error_code,
                topic=short(topic.topic_name),
                partition=part.partition_index,
                offset=offsets.get((topic.topic_name, part.partition_index)),
            ),
        )
        for topic in response.responses
        for part in topic.partitions
    )


def _delete_share_offsets(message: Any, response: Any) -> list[Change]:
    if response.error_code:
        return _told([(response.error_code, change("GROUP", message.group_id, "DELETE_OFFSETS", response.error_code))])
    return _told(
        (
            topic.error_code,
            change("GROUP", message.group_id, "DELETE_OFFSETS", topic.error_code, topic=short(topic.topic_name)),
        )
        for topic in response.responses
    )


ADMIN_SAYS: Final = "member was removed by an admin"
"""How the reason begins that Kafka's tools give."""


def _removes_others(message: Any) -> bool:
    """Whether an administrator has members leave. A member that leaves by itself names the id that it was given, and no other.

    A request that names one id, without that reason, looks the same from an administrator and from the member. It counts as the
    member's own.
    """
    return len(message.members) > 1 or any(
        not one.member_id or (one.reason or "").startswith(ADMIN_SAYS) for one in message.members
    )


def _leave(message: Any, response: Any) -> list[Change]:
    def told(code: int, **member: Any) -> Change:
        return change("GROUP", message.group_id, "REMOVE_MEMBER", code, **member)

    if response.error_code:
        return _told([(response.error_code, told(response.error_code))])
    found = []
    for one in response.members:
        instance = {"instance": short(one.group_instance_id)} if one.group_instance_id else {}
        found.append((one.error_code, told(one.error_code, member=short(one.member_id), **instance)))
    return _told(found)


def _commits_for_no_member(message: Any) -> bool:
    """Whether offsets are set by an administrator, or by a consumer that assigns itself its partitions.

    The member id says nothing: a group without members takes such commits with any member id.
    """
    epoch: int = message.generation_id_or_member_epoch
    return epoch < 0


def _commit(message: Any, response: Any) -> list[Change]:
    offsets = {
        (topic.topic_id, topic.name, part.partition_index): part.committed_offset
        for topic in message.topics
        for part in topic.partitions
    }
    return _told(
        (
            part.error_code,
            change(
                "GROUP",
                message.group_id,
                "ALTER_OFFSETS",
                part.error_code,
                topic=short(topic.name) or str(topic.topic_id),
                partition=part.partition_index,
                offset=offsets.get((topic.topic_id, topic.name, part.partition_index)),
            ),
        )
        for topic in response.topics
        for part in topic.partitions
    )


# --- transactions ---------------------------------------------------------------------------------------------------


def _marks_by_hand(message: Any) -> bool:
    """Whether an operator writes markers: brokers name topics by id, too, and tools do not."""
    return any(topic.topic_id == NO_TOPIC_ID for one in message.markers for topic in one.topics)


def _markers(message: Any, response: Any) -> list[Change]:
    return _told(
        (
            part.error_code,
            change(
                "TOPIC",
                topic.name,
                "COMMIT_TRANSACTION" if asked.transaction_result else "ABORT_TRANSACTION",
                part.error_code,
                partition=part.partition_index,
                producer_id=asked.producer_id,
                producer_epoch=asked.producer_epoch,
            ),
        )
        for asked, answer in zip(message.markers, response.markers, strict=False)
        for topic in answer.topics
        for part in topic.partitions
    )


# --- tokens ---------------------------------------------------------------------------------------------------------


def _create_token(message: Any, response: Any) -> list[Change]:
    code = response.error_code
    told = change(
        "DELEGATION_TOKEN",
        response.token_id or None,
        "CREATE",
        code,
        owner=short(f"{response.principal_type}:{response.principal_name}"),
        renewers=_some([short(f"{one.principal_type}:{one.principal_name}") for one in message.renewers]),
    )
    return _told([(code, told if code else told | {"expires_ms": response.expiry_timestamp_ms})])


def _change_token(action: str) -> Tell:
    """The message has the token's secret and not its id, which is the request's ``about``."""

    def tell(message: Any, response: Any) -> list[Change]:
        code = response.error_code
        told = change("DELEGATION_TOKEN", None, action, code)
        return _told([(code, told if code else told | {"expires_ms": response.expiry_timestamp_ms})])

    return tell


def _move_replicas(message: Any, response: Any) -> list[Change]:
    paths = {
        (topic.name, partition): directory.path
        for directory in message.dirs
        for topic in directory.topics
        for partition in topic.partitions
    }
    return _told(
        (
            part.error_code,
            change(
                "TOPIC",
                topic.topic_name,
                "MOVE_TO_DIRECTORY",
                part.error_code,
                partition=part.partition_index,
                directory=short(paths.get((topic.topic_name, part.partition_index), "")),
            ),
        )
        for topic in response.results
        for part in topic.partitions
    )


CHANGES: Final[Mapping[int, Tell]] = {
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _move_replicas,
    ApiKey.ELECT_LEADERS: _elect,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassign,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _alter_configs,
    ApiKey.UPDATE_FEATURES: _features,
    ApiKey.UNREGISTER_BROKER: _unregister,
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: _delete_acls,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _users,
    ApiKey.ALTER_CLIENT_QUOTAS: _quotas,
    ApiKey.CREATE_DELEGATION_TOKEN: _create_token,
    ApiKey.RENEW_DELEGATION_TOKEN: _change_token("RENEW"),
    ApiKey.EXPIRE_DELEGATION_TOKEN: _change_token("EXPIRE"),
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.LEAVE_GROUP: _leave,
    ApiKey.OFFSET_COMMIT: _commit,
    ApiKey.OFFSET_DELETE: _delete_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _share_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _delete_share_offsets,
    ApiKey.WRITE_TXN_MARKERS: _markers,
    ApiKey.FIRN_DRAIN: _drain,
    ApiKey.FIRN_TIER_REPLACE: _replace_segments,
    ApiKey.FIRN_REGISTER: _register,
    ApiKey.FIRN_SCHEMAS: _schemas,
}
"""The APIs that change something other than by reading and writing records."""

ONLY_IF: Final[Mapping[int, Callable[[Any], bool]]] = {
    ApiKey.LEAVE_GROUP: _removes_others,
    ApiKey.OFFSET_COMMIT: _commits_for_no_member,
    ApiKey.WRITE_TXN_MARKERS: _marks_by_hand,
}
"""APIs that consumers or brokers also ask all the time: which of their messages are an administrator's."""

COUNTED: Final = frozenset(
    {
        ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
    }
)
"""A caller needs no right for these, or only READ, and may send them in a loop: identical ones are counted."""


# --- sampled access -------------------------------------------------------------------------------------------------

NOT_SAMPLED: Final = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
        ApiKey.PUSH_TELEMETRY,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.ALTER_PARTITION,
        ApiKey.ENVELOPE,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
        ApiKey.FIRN_METRICS,
        ApiKey.FIRN_PLACE,
        ApiKey.FIRN_ENTRIES,
        ApiKey.FIRN_MEMBERS,
        ApiKey.FIRN_CHANGE,
        ApiKey.FIRN_MANIFESTS,
        ApiKey.FIRN_FORWARDED,
        ApiKey.FIRN_TRANSACTIONS,
        ApiKey.FIRN_HOLD,
        ApiKey.FIRN_PULSE,
    }
)
"""APIs that the sample leaves out: those between brokers, and frequent ones that need no right."""


def resources_of(message: Any) -> list[Resource]:
    """The group, transactional id and topics in the top-level fields of a request."""
    found = []
    for field, kind in (("group_id", "GROUP"), ("transactional_id", "TRANSACTIONAL_ID")):
        name = getattr(message, field, None)
        if isinstance(name, str) and name:
            found.append(Resource("", kind, name))
    topics = getattr(message, "topics", None)
    for topic in topics or ():
        name = getattr(topic, "name", None) or getattr(topic, "topic", None)
        if isinstance(name, str):
            found.append(Resource("", "TOPIC", name))
    return found
