"""What Firn trusts of whoever asks, for each private API and each HTTP route, and which tests hold it (ADR 0003, 0015).

Rights decide who may ask (ADR 0030). The rules here are what a request may *say*. A new key,
a new field of a private request or a new route has no entry here, and a test fails until somebody has thought about it.
"""

from __future__ import annotations

import ast
import random
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from app.handlers.serving.dispatch import Apis
from app.http.access import HEALTH_PATHS
from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from app.metadata.peers import control
from app.metadata.peers.control import HoldRequest, LookRequest
from app.wire import private
from app.wire.apikeys import ApiKey
from app.wire.versions import OPAQUE
from tests.support.routes import served_routes

TESTS = Path(__file__).parent
PRIVATE_FROM = 20_000


class Private(NamedTuple):
    """A private API: each field of its request with what is believed of it, and the tests that hold that."""

    request: type[msgspec.Struct]
    fields: dict[str, str]
    tests: tuple[str, ...]


class Served(NamedTuple):
    """An HTTP route: what is believed of a request, and the tests that hold that."""

    trusts: str
    tests: tuple[str, ...]


NO_REQUEST = (
    "broker/test_private_apis.py::test_what_is_no_request_of_a_private_api_ends_its_connection_and_changes_nothing"
)
NOT_THERE = "broker/test_private_apis.py::test_partitions_and_offsets_that_there_are_not_are_answered_with_nothing"
NO_MEMBER = "broker/test_private_apis.py::test_a_broker_that_is_no_controller_changes_nothing_for_another"

PRIVATE_APIS = {
    ApiKey.FIRN_METRICS: Private(
        private.MetricsRequest,
        {"names": "compared with names of samples; at most 200 of 100 characters"},
        (
            NO_REQUEST,
            "handlers/test_small_apis.py::test_metrics_are_told_over_the_protocol",
            "broker/test_named_metrics.py::test_each_metric_is_told_by_its_name_alone",
        ),
    ),
    ApiKey.FIRN_TIER_STATUS: Private(
        private.TierStatusRequest,
        {"topics": "names to look up; those that do not exist are told", "replicas": "it only adds what is followed"},
        (NO_REQUEST, NOT_THERE),
    ),
    ApiKey.FIRN_TIER_SEGMENTS: Private(
        private.TierSegmentsRequest,
        {
            "topic": "a name to look up",
            "partition": "a number to look up",
            "from_offset": "any number: it only leaves segments out",
        },
        (NO_REQUEST, NOT_THERE),
    ),
    ApiKey.FIRN_TIER_REPLACE: Private(
        private.TierReplaceRequest,
        {
            "topic": "must be led by this broker",
            "partition": "must be led by this broker",
            "step": "one of three",
            "inputs": "must be readable neighbours of this partition, not local any more, which the range covers exactly",
            "segment_id": "the key is made of it; the footer under that key must bear it",
            "base_offset": "held against the inputs, and against the footer",
            "end_offset": "held against the inputs, and against the footer",
        },
        (
            NO_REQUEST,
            "broker/test_replacing.py::test_nobody_can_have_an_object_deleted_by_naming_its_key",
            "broker/test_replacing.py::test_nobody_can_have_segments_replaced_by_an_object_that_is_not_there",
            "broker/test_replacing.py::test_a_replacement_that_cannot_be_one_is_refused_in_a_sentence",
            "tiering/test_replacement.py::test_an_object_that_is_not_the_replacement_replaces_nothing",
            "tiering/test_replacement.py::test_another_segment_or_a_damaged_one_under_the_key_replaces_nothing",
            "tiering/test_replacement.py::test_what_is_local_still_or_is_no_run_of_neighbours_is_not_replaced",
            "tiering/test_replacement.py::test_a_copy_of_the_leaders_own_is_given_up_by_nobody_else",
        ),
    ),
    ApiKey.FIRN_PLACE: Private(
        private.PlaceRequest,
        {
            "cluster_id": "compared with the broker's own",
            "node_id": "compared with the broker's own",
            "directory_id": "compared with the broker's own",
            "replaced_by": "not believed: the broker reads the cluster log, and not again for some seconds",
        },
        (
            NO_REQUEST,
            "broker/test_private_apis.py::test_a_forged_notice_of_a_take_over_costs_a_look_and_the_broker_serves_on",
            "handlers/test_acknowledging.py::test_forged_messages_cost_a_look_now_and_then_and_no_more",
        ),
    ),
    ApiKey.FIRN_DRAIN: Private(
        private.DrainRequest,
        {"step": "trusted: whoever reaches the listener may drain the broker, and so stop it (ADR 0019)"},
        (
            NO_REQUEST,
            "broker/test_drain.py::test_a_broker_that_drains_refuses_writes_and_serves_all_else",
            "broker/test_drain.py::test_a_drain_that_is_taken_back_leaves_a_broker_that_writes",
        ),
    ),
    ApiKey.FIRN_SCHEMAS: Private(
        private.SchemasRequest,
        {
            "step": "must be known",
            "offset": "compared with the end of the log in the turn of the append; a read begins at the log start at least",
            "subject": "each key must name it, and the caller must have a right on the topic that it names (ADR 0041, SR6)",
            "records": "so many are read at most; ids and keys are compared with those in the log (ADR 0041, SR2, SR11)",
            "history": "compared with the topic's id and last loss of an end; empty is a log that was not there, and must end at 0",
        },
        (
            NO_REQUEST,
            "broker/test_schema_log.py::test_an_append_at_another_end_is_refused_with_the_end_and_changes_nothing",
            "broker/test_schema_rights.py::test_a_subject_is_written_with_the_rights_of_its_topic",
            "schemas/test_records.py::test_a_record_that_other_readers_may_take_for_another_subjects_is_refused",
            "schemas/test_shard.py::test_an_id_stands_for_one_schema",
        ),
    ),
    ApiKey.FIRN_REQUESTS: Private(
        private.RequestsRequest,
        {
            "step": "must be known",
            "key": "looked up with the principal of the connection, never with one that a request names; 1 to 255 bytes",
            "try_id": "16 bytes; another try of the same principal may take its reservation, which is a courtesy (ADR 0043, EO6)",
            "partitions": "must exist, and the caller must have WRITE on each topic; so many are read at most",
            "size_bytes": "only asks for room: the append counts the bytes that it writes",
            "transactional_id": "must begin with the prefix of the connection's principal, and the coordinator must know it",
            "producer_id": "held against the transaction of the id by its coordinator",
            "producer_epoch": "held against the transaction of the id by its coordinator",
            "result": "must be a result of this try; answers its own principal alone, with offsets that the caller named",
            "offset": "any number: the fate of a record is told to brokers alone",
        },
        (
            NO_REQUEST,
            "broker/test_keyed_requests.py::test_two_principals_have_two_keys",
            "broker/test_keyed_requests.py::test_a_new_key_needs_the_right_to_write_to_each_topic",
            "broker/test_keyed_requests.py::test_a_result_is_appended_in_a_transaction_of_its_principal_alone",
            "broker/test_keyed_requests.py::test_a_message_that_no_client_of_firn_sends_is_refused",
        ),
    ),
    ApiKey.FIRN_APPEND: Private(
        private.AppendRequest,
        {
            "topic_id": "must be known, and the caller must have WRITE on its topic, or DESCRIBE to ask for the end",
            "partition": "must be led here",
            "records": "checked as those of a Produce request, by the same functions",
            "end": "compared with the log in the turn of the append (ADR 0043, EO18)",
            "epoch": "as end",
            "transactional_id": "the caller must have WRITE on it, and its coordinator must know the transaction",
            "timeout_ms": "bounded",
        },
        (
            NO_REQUEST,
            "broker/test_conditional_appends.py::test_a_batch_is_appended_behind_the_end_that_was_read_alone",
            "broker/test_conditional_appends.py::test_the_caller_needs_the_rights_of_a_producer",
            "broker/test_conditional_appends.py::test_records_are_checked_as_those_of_a_produce_request",
        ),
    ),
    ApiKey.FIRN_KEYED: Private(
        private.KeyedRequest,
        {
            "key": "looked up with the principal of the connection, never with one that a request names; 1 to 255 bytes",
            "try_id": "16 bytes; another try of the same principal may take its reservation, which is a courtesy (ADR 0043, EO6)",
            "transactional_id": "must begin with the prefix of the connection's principal, and the coordinator must know it",
            "producer_id": "held against the transaction of the id by its coordinator, and each batch must have it",
            "producer_epoch": "as producer_id",
            "timeout_ms": "must be the one that the look-up finds, or nothing is begun",
            "result": "must be a result of this try; its partitions must exist, and the caller must have WRITE on each topic",
            "batches": "one for each partition of the result; checked as those of a Produce request, by the same functions",
        },
        (
            NO_REQUEST,
            "broker/test_keyed_tries.py::test_the_rights_are_those_of_the_steps",
            "broker/test_keyed_tries.py::test_an_identity_that_is_not_the_transactions_begins_nothing",
            "broker/test_keyed_tries.py::test_a_record_or_a_result_that_is_refused_leaves_the_transaction_to_its_caller",
            "broker/test_keyed_tries.py::test_a_message_that_no_client_of_firn_sends_closes_its_connection",
        ),
    ),
    ApiKey.FIRN_FORWARDED: Private(
        private.ForwardedRequest,
        {"address": "believed of connections from firn.trusted.proxies alone, once, before a login (ADR 0034, HF1)"},
        (
            NO_REQUEST,
            "broker/test_forwarded.py::test_nobody_else_names_an_address_and_who_tries_is_a_line",
            "broker/test_forwarded.py::test_an_address_is_named_once_and_before_the_login_begins",
            "broker/test_forwarded.py::test_what_is_no_address_is_refused",
        ),
    ),
    ApiKey.FIRN_ENTRIES: Private(
        control.EntriesRequest,
        {
            "cluster_id": "compared with the broker's own",
            "start": "any number: entries that are not at hand are not handed out",
            "wait_ms": "bounded",
            "broker_id": "one that is registered; a warning may name it",
            "now_ms": "any number: it is compared with the clock here, and shown",
        },
        (NO_REQUEST, NO_MEMBER),
    ),
    ApiKey.FIRN_MEMBERS: Private(
        control.HeardRequest,
        {"cluster_id": "compared with the broker's own", "broker_id": "not believed: it is not read"},
        (NO_REQUEST, NO_MEMBER),
    ),
    ApiKey.FIRN_REGISTER: Private(
        control.RegisterRequest,
        {
            "cluster_id": "compared with the broker's own",
            "broker_id": "trusted, if its place is free, or its own by directory id, or its holder is gone (ADR 0023, M)",
            "directory_id": "tells whether the place is this broker's own",
            "incarnation": "tells a request that comes twice from two processes",
            "replaces": "must be the registration that the controller knows",
            "clean_epoch": "trusted: where it is the epoch of the last registration, the replicas stay in sync",
            "run_epoch": "trusted, as clean_epoch",
            "run_boot_id": "trusted, as clean_epoch",
            "boot_id": "trusted, as clean_epoch",
            "endpoints": "trusted: clients are sent there",
            "rack": "trusted: replicas are placed by it",
            "instance_id": "said to people only",
            "level_min": "must allow the cluster's level",
            "level_max": "must allow the cluster's level",
            "force": "trusted: it takes the place of a broker that may still run",
            "anew": "counts only for the present registration of the same incarnation, which it ends (ADR 0037, J14)",
            "ephemeral": "refused below level 3, and for a broker with replicas on its disk (ADR 0037, J47)",
            "wal_store": "must be that of the cluster; another one only while nothing is in it (ADR 0037, J62, J63)",
        },
        (
            NO_REQUEST,
            NO_MEMBER,
            "metadata/test_broker_changes.py::test_m11_the_place_of_an_unfenced_broker_is_given_to_no_other_directory",
            "metadata/test_wal_store.py::test_j62_a_broker_registers_with_the_store_that_the_cluster_names",
        ),
    ),
    ApiKey.FIRN_MANIFESTS: Private(
        control.ManifestsRequest,
        {
            "cluster_id": "compared with the broker's own",
            "broker_id": "trusted, if it is registered: it chooses which partitions are told of, all of which may be read",
            "term": "another term's place is not looked at",
            "place": "any number: entries that are not at hand are not handed out",
            "wait_ms": "bounded",
            "asked": "partitions to look up; so many are answered at most, and numbers that are not at hand with none",
        },
        (NO_REQUEST, NO_MEMBER),
    ),
    ApiKey.FIRN_TRANSACTIONS: Private(
        LookRequest,
        {
            "cluster_id": "compared with the broker's own",
            "sequence": "any number: a broker that has not applied that entry answers nothing",
            "producers": "any: unknown ones are found nowhere; so many are looked up at most",
            "doubts": "partitions that are led here; so many are looked up at most",
        },
        (NO_REQUEST, NO_MEMBER),
    ),
    ApiKey.FIRN_HOLD: Private(
        HoldRequest,
        {
            "cluster_id": "compared with the broker's own",
            "hold": "must name the present controller's epoch; so many are held at most",
            "sequence": "any number: a broker that has not applied that entry holds nothing, and ends nothing",
            "partitions": "must be led here in these leader epochs",
        },
        (
            NO_REQUEST,
            NO_MEMBER,
            "tiering/test_copy_holds.py::test_a_hold_ends_with_the_record_of_a_later_controller",
        ),
    ),
    ApiKey.FIRN_PULSE: Private(
        control.PulseRequest,
        {
            "cluster_id": "compared with the broker's own",
            "broker_id": "trusted, if it is registered: whoever may be a broker may say that another one lives, for some seconds",
            "broker_epoch": "compared with the registered one",
            "late": "trusted: it prolongs a session that heartbeats have begun, and nothing else",
            "turned_ms": "trusted within bounds: a session ends so long after its last heartbeat in any case",
            "controller_epoch": "compared with that of the newest known seal",
            "confirmed_ms": "trusted within bounds, as ``turned_ms``",
        },
        (
            NO_REQUEST,
            NO_MEMBER,
            "metadata/test_pulses.py::test_l6_a_pulse_of_another_broker_epoch_counts_for_nothing",
            "metadata/test_pulses.py::test_l6_a_pulse_counts_for_a_session_timeout_nine_seconds_after_a_turn_and_twelve_after_a_heartbeat",
            "metadata/test_pulses.py::test_c10_a_pulse_of_any_other_than_the_controller_of_the_newest_seal_counts_for_nothing",
        ),
    ),
    ApiKey.FIRN_CLUSTER: Private(
        private.ClusterRequest,
        {"leaving": "compared with node ids; only partitions that lack nothing else are left out"},
        (
            NO_REQUEST,
            "metadata/test_standing.py::test_a_broker_that_is_to_stop_waits_for_replicas_of_others_and_not_for_its_own",
            "cli/test_cluster_commands.py::test_status_and_brokers_are_the_same_by_any_broker_and_by_the_store",
        ),
    ),
    ApiKey.FIRN_TOPICS: Private(
        private.TopicsRequest,
        {
            "contains": "compared with names; at most 300 characters",
            "after": "compared with names; at most 300 characters",
            "limit": "from 1 to 1,000",
            "internal": "trusted: the right to each topic decides",
        },
        (
            NO_REQUEST,
            "broker/test_topic_names.py::test_names_come_in_pages_in_their_order",
            "broker/test_topic_names.py::test_only_topics_that_the_caller_may_describe_are_listed_and_counted",
        ),
    ),
    ApiKey.FIRN_TOPIC_LAGS: Private(
        private.TopicLagsRequest,
        {
            "ends": "used for the sums of this response alone; at most 100 topics and 10,000 partitions",
            "limit": "at most 100",
            "after": "compared with ids of groups",
            "partition": "looked up among the offsets of a group",
        },
        (
            NO_REQUEST,
            "broker/test_topic_lags.py::test_a_caller_sees_the_lags_of_topics_and_groups_that_it_may_describe",
            "broker/test_topic_lags.py::test_more_partitions_than_a_request_may_name_end_the_connection",
        ),
    ),
    ApiKey.FIRN_CHANGE: Private(
        control.ChangeRequest,
        {
            "cluster_id": "compared with the broker's own",
            "broker_id": "trusted, with its epoch: only brokers have the right",
            "broker_epoch": "must be the epoch of the registration",
            "name": "one of those that there are",
            "body": "as for the change of its name; epochs are raised only of what the broker leads",
        },
        (NO_REQUEST, NO_MEMBER),
    ),
}

DOOR = "http/test_access.py::test_no_route_serves_a_foreign_host_or_origin"
"""It walks over every route, as this test does."""
ERRORS = "http/test_application.py::test_errors_have_the_rest_proxys_shape"
LIFE = "http/test_application.py::test_a_topic_lives_from_create_to_delete"
CONFIGS = "http/test_application.py::test_settings_of_a_topic_are_read_set_and_set_back"
MISSING = "http/test_application.py::test_replicas_and_brokers_settings_that_there_are_not_are_404"
PAGE_ELSEWHERE = "http/test_access.py::test_a_page_elsewhere_can_neither_make_a_topic_nor_write_to_one"
HEALTH = "http/test_access.py::test_health_is_told_whatever_host_is_asked_for"

NOTHING = Served("nothing is said but the path", (DOOR,))
HEALTH_CHECK = Served("nothing, the host neither: load balancers ask by address", (DOOR, HEALTH))
LOOKED_UP = Served("names and numbers of the path are looked up; nothing is changed", (DOOR, ERRORS, MISSING))
CHANGES_TOPICS = Served(
    "whoever reaches the port may change topics; the body's form is checked, the broker decides as for a Kafka request",
    (DOOR, ERRORS, LIFE, PAGE_ELSEWHERE),
)
CHANGES_CONFIGS = Served(CHANGES_TOPICS.trusts, (DOOR, ERRORS, CONFIGS, PAGE_ELSEWHERE))

REST = "http/rest_v3/"
CHANGES_BROKERS = Served(
    "whoever reaches the port may change settings of brokers; the body is checked, the broker decides as for Kafka",
    (
        DOOR,
        ERRORS,
        f"{REST}test_settings.py::test_settings_of_brokers_are_set_changed_together_and_taken_back",
        f"{REST}test_settings.py::test_a_setting_that_was_not_made_for_all_brokers_and_a_broker_that_is_not_there_are_404",
    ),
)
GROUPS_LOOKED_UP = Served(
    "names of the path are looked up; assignments that members wrote are bounded, and decoded in portions",
    (
        DOOR,
        f"{REST}test_groups.py::test_groups_members_and_lags_that_there_are_not_are_404",
        f"{REST}test_groups.py::test_a_group_is_found_by_its_link_whatever_its_id_is",
    ),
)
ACLS = Served(
    "names of types and operations are those that there are; a deletion names all its filters; the broker decides",
    (
        DOOR,
        f"{REST}test_acls.py::test_a_deletion_that_forgets_a_filter_deletes_nothing",
        f"{REST}test_acls.py::test_an_acl_that_cannot_be_is_refused_with_the_name_of_the_field_and_none_of_its_batch_is_made",
        f"{REST}test_acls.py::test_a_search_with_an_unknown_name_is_refused",
    ),
)
MOVES_LOOKED_UP = Served(
    LOOKED_UP.trusts,
    (DOOR, f"{REST}test_reassignments.py::test_a_partition_that_rests_has_a_reassignment_without_changes"),
)
REGISTRY_RIGHTS = "http/registry/test_broker.py::test_a_caller_sees_and_writes_the_subjects_of_its_topics_alone"
REGISTRY_ERRORS = "http/registry/test_routes.py::test_errors_have_the_codes_of_the_api"
SCHEMAS_LOOKED_UP = Served(
    "names and numbers are looked up; the broker leaves out schemas that the caller may not see",
    (DOOR, REGISTRY_ERRORS, REGISTRY_RIGHTS),
)
CHANGES_SCHEMAS = Served(
    "schemas are bounded and parsed off the loop; the broker decides rights, and whether the end that was read holds",
    (
        DOOR,
        REGISTRY_ERRORS,
        REGISTRY_RIGHTS,
        "http/registry/test_routes.py::test_bodies_that_are_no_schema_are_refused",
        "http/registry/test_broker.py::test_two_processes_at_once_give_no_id_twice",
    ),
)
CHANGES_REGISTRY = Served(
    "levels and modes are those that there are; the broker decides",
    (
        DOOR,
        REGISTRY_RIGHTS,
        "http/registry/test_routes.py::test_configs_are_set_got_and_taken_away",
        "http/registry/test_routes.py::test_modes_are_set_got_and_taken_away",
    ),
)
OF_INSTANCES_RIGHTS = (
    "http/rest_v2/test_callers_of_instances.py::test_each_request_needs_the_rights_of_what_it_asks_the_broker"
)
NOT_OFFERED = Served("nothing: it is answered that there is no such service", (DOOR, REGISTRY_ERRORS))

CLUSTER = "/v3/clusters/{cluster_id}"
BROKER = f"{CLUSTER}/brokers/{{broker_id}}"
TOPIC = f"{CLUSTER}/topics/{{topic_name}}"
PARTITION = f"{TOPIC}/partitions/{{partition_id}}"
CONSUMER_GROUP = f"{CLUSTER}/consumer-groups/{{consumer_group_id}}"
MEMBER = f"{CONSUMER_GROUP}/consumers/{{consumer_id}}"
SHARE_GROUP = f"{CLUSTER}/share-groups/{{group_id}}"
VERSION = "/subjects/{subject}/versions/{version}"
OF_PARTITION = "{topic_name}/partitions/{partition_id}"
REGISTRY_ROUTES: dict[tuple[str, str], Served] = {
    **dict.fromkeys(
        (
            ("GET", path)
            for path in (
                "/config",
                "/config/{subject}",
                "/contexts",
                "/mode",
                "/mode/{subject}",
                "/schemas",
                "/schemas/guids/{guid}",
                "/schemas/guids/{guid}/ids",
                "/schemas/ids/{schema_id}",
                "/schemas/ids/{schema_id}/schema",
                "/schemas/ids/{schema_id}/subjects",
                "/schemas/ids/{schema_id}/versions",
                "/subjects",
                "/subjects/{subject}/metadata",
                "/subjects/{subject}/versions",
                VERSION,
                f"{VERSION}/referencedby",
                f"{VERSION}/schema",
            )
        ),
        SCHEMAS_LOOKED_UP,
    ),
    **dict.fromkeys(
        (
            ("GET", "/schemas/types"),
            ("GET", "/v1/metadata/id"),
            ("GET", "/v1/metadata/version"),
            ("GET", "/v1/metadata/deployment"),
        ),
        NOTHING,
    ),
    **dict.fromkeys(
        (
            ("POST", "/compatibility/subjects/{subject}/versions"),
            ("POST", "/compatibility/subjects/{subject}/versions/{version}"),
            ("POST", "/subjects/{subject}"),
            ("POST", "/subjects/{subject}/versions"),
            ("DELETE", "/subjects/{subject}"),
            ("DELETE", VERSION),
        ),
        CHANGES_SCHEMAS,
    ),
    **dict.fromkeys(
        (
            (method, path)
            for method in ("PUT", "DELETE")
            for path in ("/config", "/config/{subject}", "/mode", "/mode/{subject}")
        ),
        CHANGES_REGISTRY,
    ),
    **dict.fromkeys(
        (
            (method, f"{path}{rest}")
            for method in ("GET", "POST", "PUT", "DELETE")
            for path in ("/dek-registry", "/exporters")
            for rest in ("", "/{rest:path}")
        ),
        NOT_OFFERED,
    ),
}
REST_V2 = "http/rest_v2/"
V2_LOOKED_UP = Served(
    "names are looked up; the broker leaves out, or refuses, topics that the caller may not describe",
    (DOOR, f"{REST_V2}test_topics.py::test_things_that_there_are_not_have_codes_of_their_own", OF_INSTANCES_RIGHTS),
)
V2_PRODUCE = Served(
    "bodies and records are bounded, and converted before any is stored; the broker decides on each record",
    (
        DOOR,
        f"{REST_V2}test_produce.py::test_a_body_that_cannot_be_converted_stores_nothing",
        f"{REST_V2}test_produce.py::test_a_record_that_the_broker_refuses_has_an_error_and_the_others_are_stored",
        OF_INSTANCES_RIGHTS,
    ),
)
INSTANCES = Served(
    "instances are bounded, and belong to the caller that made them; each request to the broker is made as this caller",
    (
        DOOR,
        f"{REST_V2}test_callers_of_instances.py::test_a_caller_finds_its_own_instances_only_and_takes_no_name_from_others",
        f"{REST_V2}test_callers_of_instances.py::test_an_instance_keeps_the_login_of_its_caller_and_ends_when_the_user_is_removed",
        f"{REST_V2}test_consumers.py::test_a_wrong_setting_is_refused_by_its_name",
        OF_INSTANCES_RIGHTS,
    ),
)
V2_PARTITION = "/topics/{topic_name}/partitions/{partition_id}"
INSTANCE = "/consumers/{group_name}/instances/{instance}"
V2_ROUTES: dict[tuple[str, str], Served] = {
    **dict.fromkeys(
        (
            ("GET", path)
            for path in (
                "/brokers",
                "/topics",
                "/topics/{topic_name}",
                "/topics/{topic_name}/partitions",
                V2_PARTITION,
                f"{V2_PARTITION}/offsets",
            )
        ),
        V2_LOOKED_UP,
    ),
    ("POST", "/topics/{topic_name}"): V2_PRODUCE,
    ("POST", V2_PARTITION): V2_PRODUCE,
    ("POST", "/consumers/{group_name}"): INSTANCES,
    ("DELETE", INSTANCE): INSTANCES,
    **dict.fromkeys(
        (
            (method, f"{INSTANCE}/{end}")
            for end, methods in {
                "subscription": ("GET", "POST", "DELETE"),
                "assignments": ("GET", "POST"),
                "positions": ("POST",),
                "positions/beginning": ("POST",),
                "positions/end": ("POST",),
                "offsets": ("GET", "POST"),
                "records": ("GET",),
            }.items()
            for method in methods
        ),
        INSTANCES,
    ),
}
CONSOLE = "http/console/"
PAGES = Served(
    "names and numbers are looked up, texts of a filter are bounded; nothing is changed, and each text of others is escaped",
    (
        DOOR,
        f"{CONSOLE}test_pages.py::test_each_page_has_the_policy_of_content_and_runs_nothing_inline",
        f"{CONSOLE}test_messages.py::test_hostile_records_are_text",
        f"{CONSOLE}test_masks.py::test_no_page_no_search_and_no_file_of_the_console_tells_a_masked_field",
        f"{CONSOLE}test_schemas.py::test_hostile_names_and_texts_are_text",
        f"{CONSOLE}test_topics.py::test_a_page_of_a_topic_that_there_is_not_is_404",
        f"{CONSOLE}test_runbooks.py::test_the_list_leads_to_each_runbook_and_others_are_404",
    ),
)
LOGINS = Served(
    "a form has the token of its session; the broker decides about the credential; a cookie counts for the console alone",
    (
        DOOR,
        f"{CONSOLE}test_logins.py::test_a_form_without_the_token_of_its_session_changes_nothing",
        f"{CONSOLE}test_logins.py::test_a_session_counts_for_the_console_alone",
        f"{CONSOLE}test_logins.py::test_a_login_leads_to_pages_of_the_console_alone",
    ),
)
ACTS = Served(
    "a form has the token of its session, its texts are bounded, and the broker decides whether the caller may do it",
    (
        DOOR,
        f"{CONSOLE}test_producing.py::test_a_message_without_the_token_of_a_page_is_not_stored",
        f"{CONSOLE}test_producing.py::test_the_broker_decides_whether_the_caller_may_write",
        f"{CONSOLE}test_resending.py::test_a_message_is_not_sent_on_without_the_token_of_a_page",
        f"{CONSOLE}test_resending.py::test_the_broker_decides_where_the_caller_may_send",
        f"{CONSOLE}test_resetting.py::test_a_reset_needs_the_typed_name_and_a_page_of_this_session",
        f"{CONSOLE}test_resetting.py::test_the_broker_decides_whether_the_caller_may_reset",
        f"{CONSOLE}test_producing.py::test_a_console_that_only_shows_refuses_each_change_and_offers_none",
    ),
)
CONSOLE_ROUTES = {
    **dict.fromkeys(
        (
            ("GET", f"/console{path}")
            for path in (
                "",
                "/live",
                "/live/topics",
                "/topics",
                "/topics/{topic_name}",
                "/topics/{topic_name}/messages",
                "/topics/{topic_name}/partitions",
                "/topics/{topic_name}/groups",
                "/topics/{topic_name}/settings",
                "/topics/{topic_name}/produce",
                "/topics/{topic_name}/export",
                "/topics/{topic_name}/follow",
                "/topics/{topic_name}/partitions/{partition_id}/messages/{offset}/resend",
                "/topics/{topic_name}/partitions/{partition_id}/messages/{offset}",
                "/topics/{topic_name}/partitions/{partition_id}/messages/{offset}/value",
                "/groups",
                "/groups/{group_id}",
                "/groups/{group_id}/live",
                "/groups/{group_id}/reset",
                "/topics/{topic_name}/partitions/{partition_id}/producers",
                "/transactions",
                "/transactions/{transactional_id}",
                "/brokers",
                "/brokers/{broker_id}",
                "/store",
                "/users",
                "/quotas",
                "/schemas",
                "/schemas/{subject}",
                "/schemas/{subject}/versions/{version}",
                "/access",
                "/cost",
                "/runbooks",
                "/runbooks/{name}",
                "/assets/{name}",
            )
        ),
        PAGES,
    ),
    ("GET", "/console/login"): LOGINS,
    ("POST", "/console/login"): LOGINS,
    ("POST", "/console/logout"): LOGINS,
    ("POST", "/console/topics/{topic_name}/produce"): ACTS,
    ("POST", "/console/groups/{group_id}/reset"): ACTS,
    ("POST", "/console/topics/{topic_name}/partitions/{partition_id}/messages/{offset}/resend"): ACTS,
}
HTTP_ROUTES = {
    **V2_ROUTES,
    **CONSOLE_ROUTES,
    ("GET", "/"): PAGES,
    ("GET", "/docs"): NOTHING,
    ("GET", "/openapi.json"): NOTHING,
    ("GET", "/metrics"): NOTHING,
    ("GET", "/v1/cost"): NOTHING,
    ("GET", "/healthz"): HEALTH_CHECK,
    ("GET", "/readyz"): HEALTH_CHECK,
    ("GET", "/v3/clusters"): NOTHING,
    ("GET", CLUSTER): LOOKED_UP,
    ("GET", f"{CLUSTER}/brokers"): LOOKED_UP,
    ("GET", BROKER): LOOKED_UP,
    ("GET", f"{BROKER}/configs"): LOOKED_UP,
    ("GET", f"{BROKER}/configs/{{name}}"): LOOKED_UP,
    ("GET", f"{CLUSTER}/topics"): LOOKED_UP,
    ("POST", f"{CLUSTER}/topics"): CHANGES_TOPICS,
    ("GET", TOPIC): LOOKED_UP,
    ("PATCH", TOPIC): CHANGES_TOPICS,
    ("DELETE", TOPIC): CHANGES_TOPICS,
    ("GET", f"{TOPIC}/partitions"): LOOKED_UP,
    ("GET", PARTITION): LOOKED_UP,
    ("GET", f"{PARTITION}/replicas"): LOOKED_UP,
    ("GET", f"{PARTITION}/replicas/{{broker_id}}"): LOOKED_UP,
    ("GET", f"{TOPIC}/configs"): LOOKED_UP,
    ("POST", f"{TOPIC}/configs:alter"): CHANGES_CONFIGS,
    ("POST", f"{CLUSTER}/topics/-/configs:alter"): CHANGES_CONFIGS,
    ("GET", f"{TOPIC}/configs/{{name}}"): LOOKED_UP,
    ("PUT", f"{TOPIC}/configs/{{name}}"): CHANGES_CONFIGS,
    ("DELETE", f"{TOPIC}/configs/{{name}}"): CHANGES_CONFIGS,
    **REGISTRY_ROUTES,
    **dict.fromkeys(((method, f"{CLUSTER}/acls") for method in ("GET", "POST", "DELETE")), ACLS),
    ("POST", f"{CLUSTER}/acls:batch"): ACLS,
    ("GET", f"{CLUSTER}/broker-configs"): LOOKED_UP,
    ("GET", f"{CLUSTER}/broker-configs/{{name}}"): LOOKED_UP,
    ("GET", f"{CLUSTER}/brokers/-/configs"): LOOKED_UP,
    ("GET", f"{CLUSTER}/topics/-/configs"): LOOKED_UP,
    ("GET", f"{TOPIC}/default-configs"): LOOKED_UP,
    ("GET", f"{BROKER}/partition-replicas"): LOOKED_UP,
    ("GET", f"{PARTITION}/offset"): LOOKED_UP,
    **dict.fromkeys(
        (
            (method, f"{place}/{{name}}")
            for method in ("PUT", "DELETE")
            for place in (f"{CLUSTER}/broker-configs", f"{BROKER}/configs")
        ),
        CHANGES_BROKERS,
    ),
    ("POST", f"{CLUSTER}/broker-configs:alter"): CHANGES_BROKERS,
    ("POST", f"{BROKER}/configs:alter"): CHANGES_BROKERS,
    **dict.fromkeys(
        (
            ("GET", path)
            for path in (
                f"{CLUSTER}/consumer-groups",
                CONSUMER_GROUP,
                f"{CONSUMER_GROUP}/consumers",
                MEMBER,
                f"{MEMBER}/assignments",
                f"{MEMBER}/assignments/{OF_PARTITION}",
                f"{CONSUMER_GROUP}/lag-summary",
                f"{CONSUMER_GROUP}/lags",
                f"{CONSUMER_GROUP}/lags/{OF_PARTITION}",
                f"{CLUSTER}/share-groups",
                SHARE_GROUP,
                f"{SHARE_GROUP}/consumers",
                f"{SHARE_GROUP}/consumers/{{consumer_id}}",
                f"{SHARE_GROUP}/consumers/{{consumer_id}}/assignments",
            )
        ),
        GROUPS_LOOKED_UP,
    ),
    ("DELETE", SHARE_GROUP): Served(
        "the name is looked up; the broker decides, and keeps a group that has members",
        (DOOR, f"{REST}test_groups.py::test_a_share_group_shows_its_members_and_is_deleted_only_without_them"),
    ),
    ("GET", f"{CLUSTER}/topics/-/partitions/-/reassignment"): MOVES_LOOKED_UP,
    ("GET", f"{TOPIC}/partitions/-/reassignment"): MOVES_LOOKED_UP,
    ("GET", f"{PARTITION}/reassignment"): MOVES_LOOKED_UP,
    ("GET", f"{PARTITION}/records"): Served(
        "places, counts, bytes and waits are bounded; a permanent URL is compared with the topic and the leader epoch",
        (
            DOOR,
            f"{REST}test_record_reads.py::test_a_wrong_parameter_is_refused_by_its_name",
            f"{REST}test_record_reads.py::test_an_offset_outside_of_the_partition_is_refused",
            f"{REST}test_record_reads.py::test_a_permanent_url_never_shows_the_records_of_another_topic_or_of_another_leader",
        ),
    ),
    ("POST", f"{TOPIC}/records:batch"): Served(
        "whoever reaches the port may write; entries, their number and the body are bounded, and each entry has a receipt",
        (
            DOOR,
            ERRORS,
            PAGE_ELSEWHERE,
            "http/rest_v3/test_record_batches.py::test_an_entry_that_fails_keeps_no_other_from_being_stored",
            "http/rest_v3/test_record_batches.py::test_a_batch_that_cannot_be_told_apart_stores_nothing",
        ),
    ),
    ("POST", f"{TOPIC}/records"): Served(
        "whoever reaches the port may write; records and bodies are bounded, and each record has a receipt",
        (
            DOOR,
            ERRORS,
            PAGE_ELSEWHERE,
            "http/test_application.py::test_many_records_have_a_receipt_each_in_order_and_errors_do_not_end_them",
            "http/test_json_stream.py::test_an_object_that_grows_past_the_limit_is_refused_before_it_ends",
            "http/test_connections.py::test_a_body_that_comes_by_drops_is_given_up",
            "http/test_process.py::test_a_client_that_never_reads_its_receipts_stops_being_read",
        ),
    ),
    ("POST", "/v1/drain"): Served(
        "nothing is said but the path; the broker decides whether the caller may stop it",
        (
            DOOR,
            "http/test_drain.py::test_a_hook_begins_a_drain_once_and_hears_how_far_it_is",
            *PRIVATE_APIS[ApiKey.FIRN_DRAIN].tests,
        ),
    ),
    ("POST", "/firn/v1/topics/{topic_name}/partitions/{partition_id}/replacements"): Served(
        "ids and a range, as the private API that it passes them on to; no key, state, time or size",
        (
            DOOR,
            "http/test_application.py::test_what_cannot_be_a_replacement_is_refused_in_a_sentence",
            *PRIVATE_APIS[ApiKey.FIRN_TIER_REPLACE].tests,
        ),
    ),
}


def test_every_private_api_is_in_the_table() -> None:
    assert set(PRIVATE_APIS) == {key for key in {*Apis(), ApiKey.FIRN_APPEND, ApiKey.FIRN_KEYED} if key >= PRIVATE_FROM}
    assert {key for key in ApiKey if key >= PRIVATE_FROM} == OPAQUE
    requests = {
        value
        for module in (private, control)
        for name, value in vars(module).items()
        if name.endswith("Request") and isinstance(value, type) and issubclass(value, msgspec.Struct)
    }
    assert {entry.request for entry in PRIVATE_APIS.values()} == requests


@pytest.mark.parametrize("key", sorted(PRIVATE_APIS))
def test_every_field_of_a_private_request_is_in_the_table(key: ApiKey) -> None:
    entry = PRIVATE_APIS[key]
    assert tuple(entry.fields) == entry.request.__struct_fields__


def test_every_http_route_is_in_the_table() -> None:
    settings = HttpSettings(bootstrap=(("127.0.0.1", 1),))
    assert set(HTTP_ROUTES) == served_routes(create_app(settings, clock=SystemClock(), rng=random.Random(1)))
    assert {path for (_, path), entry in HTTP_ROUTES.items() if entry is HEALTH_CHECK} == HEALTH_PATHS


@cache
def names_in(path: str) -> frozenset[str]:
    found = ast.parse((TESTS / path).read_text()).body
    return frozenset(one.name for one in found if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)))


def test_the_tests_that_the_table_names_exist() -> None:
    named = {test for entry in (*PRIVATE_APIS.values(), *HTTP_ROUTES.values()) for test in entry.tests}
    assert all(entry.tests for entry in (*PRIVATE_APIS.values(), *HTTP_ROUTES.values()))
    assert [test for test in sorted(named) if test.partition("::")[2] not in names_in(test.partition("::")[0])] == []
