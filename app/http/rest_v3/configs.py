"""Settings of topics, of brokers and of all brokers together.

``topics/-/configs`` lists the settings of all topics, and ``topics/-/configs:alter`` changes those of several, as in Confluent's
REST proxy. So the settings of a topic that is named ``-`` can be read and changed one by one only.

Tests: ``tests/http/test_application.py``, ``tests/http/rest_v3/test_settings.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.client.admin import ConfigEntry
from app.core.turns import Portion, ordered
from app.http.bodies import json_response
from app.http.errors import RestError, answer_of
from app.http.gateway import Gateway
from app.http.rest_v3.clusters import found_broker
from app.http.rest_v3.resources import (
    NO_CONTENT,
    PAGED,
    RestResource,
    SettingValue,
    body_of,
    checked,
    described,
    escaped,
    listed,
    long_list,
    metadata,
    next_link,
    page_list,
    page_of,
    part_of,
    setting_text,
    url,
)
from app.http.rest_v3.topics import SETTINGS_MAX
from app.http.schemas import request_body
from app.wire.config_resources import ConfigOperation, ConfigResourceType

router = APIRouter(prefix="/v3/clusters", default_response_class=Response, tags=["Configs (v3)"])

RESOURCES_A_PAGE: Final = 500
"""Topics or brokers whose settings are on one page. A topic has about forty settings."""
TOPICS_ASKED_MAX: Final = 50
"""Topics whose settings one request to a broker asks for."""
TOPICS_CHANGED_MAX: Final = 1_000
"""Topics of one request that changes settings. They are sent to a broker ``TOPICS_ASKED_MAX`` at a time."""
ALL_BROKERS: Final = ""
"""The name under which Kafka has the settings of all brokers."""
DYNAMIC: Final = "DYNAMIC_BROKER_CONFIG"


class SettingChange(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    value: SettingValue | None = None
    operation: str | None = None
    """SET (the default), DELETE, APPEND or SUBTRACT."""


class SetSettingBody(msgspec.Struct, forbid_unknown_fields=True):
    value: SettingValue


class AlterSettingsBody(msgspec.Struct, forbid_unknown_fields=True):
    data: Annotated[list[SettingChange], msgspec.Meta(max_length=SETTINGS_MAX)]
    validate_only: bool | None = None


class TopicSettingsChange(msgspec.Struct, forbid_unknown_fields=True):
    """Changes of one of several topics."""

    topic_name: Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
    configs: Annotated[list[SettingChange], msgspec.Meta(max_length=SETTINGS_MAX)]


class AlterTopicsSettingsBody(msgspec.Struct, forbid_unknown_fields=True):
    data: Annotated[list[TopicSettingsChange], msgspec.Meta(max_length=TOPICS_CHANGED_MAX)]
    validate_only: bool | None = None


class TopicSettingsFailure(msgspec.Struct):
    """A topic whose settings are as before."""

    topic_name: str
    error_code: int
    message: str


class TopicsSettingsFailures(msgspec.Struct):
    """The topics whose settings are as before. All others of the request were changed."""

    failures: list[TopicSettingsFailure]


class SettingSynonym(msgspec.Struct):
    """A place where a setting has a value. The first one in the list counts."""

    name: str
    value: str | None
    source: str


class _Setting(RestResource, kw_only=True):
    name: str
    value: str | None
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    source: str
    synonyms: list[SettingSynonym]


class TopicSetting(_Setting, kw_only=True):
    """A setting of a topic."""

    kind: Literal["KafkaTopicConfig"] = "KafkaTopicConfig"
    cluster_id: str
    topic_name: str


class BrokerSetting(_Setting, kw_only=True):
    """A setting of a broker."""

    kind: Literal["KafkaBrokerConfig"] = "KafkaBrokerConfig"
    cluster_id: str
    broker_id: int


class ClusterSetting(_Setting, kw_only=True):
    """A setting that was made for all brokers."""

    kind: Literal["KafkaClusterConfig"] = "KafkaClusterConfig"
    cluster_id: str
    config_type: Literal["BROKER"] = "BROKER"


BODIES: Final = (
    SetSettingBody,
    AlterSettingsBody,
    AlterTopicsSettingsBody,
    TopicsSettingsFailures,
    TopicSetting,
    BrokerSetting,
    ClusterSetting,
)

_VALUE: Final = {"value": "-1"}
_TOPIC_CHANGES: Final = {
    "data": [{"name": "retention.ms", "value": "-1"}, {"name": "segment.ms", "operation": "DELETE"}]
}
_TOPICS_CHANGES: Final = {
    "data": [{"topic_name": "flights", "configs": [{"name": "retention.ms", "value": "-1"}]}],
    "validate_only": True,
}
_BROKER_CHANGES: Final = {
    "data": [{"name": "log.retention.ms", "value": "-1"}, {"name": "log.roll.ms", "operation": "DELETE"}]
}

# --- topics ---------------------------------------------------------------------------------------------------------


@router.get(
    "/{cluster_id}/topics/-/configs",
    summary="List the settings of all topics",
    description="`page_size` counts topics.",
    responses=listed(TopicSetting, "The settings of all topics that the caller may describe, by topic and name."),
    openapi_extra=PAGED,
)
async def list_configs_of_all_topics(cluster_id: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    view = await gateway.admin.describe_cluster()
    names = await ordered(view.topics.keys(), Portion(), lambda name: name)
    part, after = part_of(page_of(request, RESOURCES_A_PAGE), names, lambda name: (name,))
    found: list[TopicSetting] = []
    portion = Portion()
    for first in range(0, len(part), TOPICS_ASKED_MAX):
        of_each = await gateway.admin.describe_topics_configs(part[first : first + TOPICS_ASKED_MAX])
        for name, entries in of_each.items():
            for entry in entries:
                found.append(_of_topic(request, cluster_id, name, entry))
                if portion.spent_by():
                    await portion.rest()
    path = f"clusters/{cluster_id}/topics/-/configs"
    return await long_list(request, "KafkaTopicConfigList", path, found, next_link(request, after))


@router.post(
    "/{cluster_id}/topics/-/configs:alter",
    summary="Change settings of several topics",
    status_code=204,
    responses=described(TopicsSettingsFailures, "The topics that could not be changed.", 207),
    openapi_extra=request_body(AlterTopicsSettingsBody, _TOPICS_CHANGES),
)
async def alter_configs_of_topics(cluster_id: str, request: Request) -> Response:
    """Change each topic as a whole or not at all. A topic that cannot be changed keeps no other from being changed."""
    gateway = await checked(request, cluster_id)
    wanted = await body_of(request, gateway, AlterTopicsSettingsBody)
    changes: dict[str, list[tuple[str, ConfigOperation, str | None]]] = {}
    portion = Portion()
    for of_topic in wanted.data:
        await portion.rest_if_spent()
        if of_topic.topic_name in changes:
            raise RestError(422, f"Topic {of_topic.topic_name!r} comes twice. Send its changes together.")
        changes[of_topic.topic_name] = _changes(of_topic.configs)
    names = list(changes)
    failures: list[TopicSettingsFailure] = []
    for first in range(0, len(names), TOPICS_ASKED_MAX):
        some = {name: changes[name] for name in names[first : first + TOPICS_ASKED_MAX]}
        refused = await gateway.admin.alter_topics_configs(some, validate_only=bool(wanted.validate_only))
        for name, error in refused.items():
            answer = answer_of(error)
            failures.append(TopicSettingsFailure(name, answer.error_code, answer.message))
    return json_response(TopicsSettingsFailures(failures), 207) if failures else Response(status_code=NO_CONTENT)


@router.get(
    "/{cluster_id}/topics/{topic_name}/configs",
    summary="List a topic's settings",
    responses=listed(TopicSetting, "The settings, by name."),
)
async def list_topic_configs(cluster_id: str, topic_name: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    entries = await gateway.admin.describe_configs(ConfigResourceType.TOPIC, topic_name)
    path = f"clusters/{cluster_id}/topics/{topic_name}/configs"
    shaped = (_of_topic(request, cluster_id, topic_name, entry) for entry in entries)
    return await long_list(request, "KafkaTopicConfigList", path, shaped)


@router.get(
    "/{cluster_id}/topics/{topic_name}/default-configs",
    summary="List the settings that a new topic would have",
    responses=listed(TopicSetting, "The settings of a topic of that name, if it were made now, by name."),
)
async def list_default_configs(cluster_id: str, topic_name: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    entries = await gateway.admin.default_topic_configs(topic_name)
    path = f"clusters/{cluster_id}/topics/{topic_name}/default-configs"

    def shaped(entry: ConfigEntry) -> TopicSetting:
        found = _of_topic(request, cluster_id, topic_name, entry)
        found.metadata.self_url = url(request, path)  # the topic, and a URL of each setting, need not be there
        return found

    return await long_list(request, "KafkaTopicConfigList", path, (shaped(entry) for entry in entries))


@router.post(
    "/{cluster_id}/topics/{topic_name}/configs:alter",
    summary="Change several settings of a topic",
    status_code=204,
    openapi_extra=request_body(AlterSettingsBody, _TOPIC_CHANGES),
)
async def alter_topic_configs(cluster_id: str, topic_name: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    wanted = await body_of(request, gateway, AlterSettingsBody)
    return await _alter(gateway, ConfigResourceType.TOPIC, topic_name, wanted)


@router.get(
    "/{cluster_id}/topics/{topic_name}/configs/{name}",
    summary="Get a setting of a topic",
    responses=described(TopicSetting, "The setting."),
)
async def get_topic_config(cluster_id: str, topic_name: str, name: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    entries = await gateway.admin.describe_configs(ConfigResourceType.TOPIC, topic_name, names=[name])
    entry = _named(entries, name, f"There is no topic setting {name}.")
    return json_response(_of_topic(request, cluster_id, topic_name, entry))


@router.put(
    "/{cluster_id}/topics/{topic_name}/configs/{name}",
    summary="Set a setting of a topic",
    status_code=204,
    openapi_extra=request_body(SetSettingBody, _VALUE),
)
async def put_topic_config(cluster_id: str, topic_name: str, name: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    wanted = await body_of(request, gateway, SetSettingBody)
    return await _set(gateway, ConfigResourceType.TOPIC, topic_name, name, wanted.value)


@router.delete(
    "/{cluster_id}/topics/{topic_name}/configs/{name}",
    summary="Set a setting of a topic back to its default",
    status_code=204,
)
async def delete_topic_config(cluster_id: str, topic_name: str, name: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    return await _reset(gateway, ConfigResourceType.TOPIC, topic_name, name)


# --- one broker -----------------------------------------------------------------------------------------------------


@router.get(
    "/{cluster_id}/brokers/-/configs",
    summary="List the settings that were made for one broker each",
    description="`page_size` counts brokers.",
    responses=listed(BrokerSetting, "The settings that differ from those of all brokers, by broker and name."),
    openapi_extra=PAGED,
)
async def list_configs_of_each_broker(cluster_id: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    view = await gateway.admin.describe_brokers()
    part, after = part_of(page_of(request, RESOURCES_A_PAGE), sorted(view.brokers), lambda broker: (broker,))
    found = []
    for broker in part:
        entries = await gateway.admin.describe_configs(ConfigResourceType.BROKER, str(broker))
        found += [_of_broker(request, cluster_id, broker, one) for one in entries if _made_for_it(one)]
    path = f"clusters/{cluster_id}/brokers/-/configs"
    return await long_list(request, "KafkaBrokerConfigList", path, found, next_link(request, after))


@router.get(
    "/{cluster_id}/brokers/{broker_id}/configs",
    summary="List a broker's settings",
    responses=listed(BrokerSetting, "The settings, by name."),
)
async def list_broker_configs(cluster_id: str, broker_id: int, request: Request) -> Response:
    entries = await _broker_configs(request, cluster_id, broker_id)
    path = f"clusters/{cluster_id}/brokers/{broker_id}/configs"
    shaped = (_of_broker(request, cluster_id, broker_id, entry) for entry in entries)
    return await long_list(request, "KafkaBrokerConfigList", path, shaped)


@router.post(
    "/{cluster_id}/brokers/{broker_id}/configs:alter",
    summary="Change several settings of a broker",
    status_code=204,
    openapi_extra=request_body(AlterSettingsBody, _BROKER_CHANGES),
)
async def alter_broker_configs(cluster_id: str, broker_id: int, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    wanted = await body_of(request, gateway, AlterSettingsBody)
    await found_broker(gateway, broker_id)
    return await _alter(gateway, ConfigResourceType.BROKER, str(broker_id), wanted)


@router.get(
    "/{cluster_id}/brokers/{broker_id}/configs/{name}",
    summary="Get a setting of a broker",
    responses=described(BrokerSetting, "The setting."),
)
async def get_broker_config(cluster_id: str, broker_id: int, name: str, request: Request) -> Response:
    entries = await _broker_configs(request, cluster_id, broker_id)
    entry = _named(entries, name, f"There is no broker setting {name}.")
    return json_response(_of_broker(request, cluster_id, broker_id, entry))


@router.put(
    "/{cluster_id}/brokers/{broker_id}/configs/{name}",
    summary="Set a setting of a broker",
    status_code=204,
    openapi_extra=request_body(SetSettingBody, _VALUE),
)
async def put_broker_config(cluster_id: str, broker_id: int, name: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    wanted = await body_of(request, gateway, SetSettingBody)
    await found_broker(gateway, broker_id)
    return await _set(gateway, ConfigResourceType.BROKER, str(broker_id), name, wanted.value)


@router.delete(
    "/{cluster_id}/brokers/{broker_id}/configs/{name}",
    summary="Take back a setting of a broker",
    status_code=204,
)
async def delete_broker_config(cluster_id: str, broker_id: int, name: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    await found_broker(gateway, broker_id)
    return await _reset(gateway, ConfigResourceType.BROKER, str(broker_id), name)


def _made_for_it(entry: ConfigEntry) -> bool:
    """Whether a setting was made for its broker alone, under this name. Some settings have several names."""
    return any(said.name == entry.name and said.source == DYNAMIC for said in entry.synonyms)


async def _broker_configs(request: Request, cluster_id: str, broker_id: int) -> Sequence[ConfigEntry]:
    gateway = await checked(request, cluster_id)
    await found_broker(gateway, broker_id)
    return await gateway.admin.describe_configs(ConfigResourceType.BROKER, str(broker_id))


# --- all brokers ----------------------------------------------------------------------------------------------------


@router.get(
    "/{cluster_id}/broker-configs",
    summary="List the settings that were made for all brokers",
    responses=listed(ClusterSetting, "The settings, by name."),
    openapi_extra=PAGED,
)
async def list_cluster_configs(cluster_id: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    return await page_list(
        request,
        "KafkaClusterConfigList",
        f"clusters/{cluster_id}/broker-configs",
        await gateway.admin.describe_configs(ConfigResourceType.BROKER, ALL_BROKERS),
        place=lambda entry: (entry.name,),
        shape=lambda entry: _of_cluster(request, cluster_id, entry),
    )


@router.post(
    "/{cluster_id}/broker-configs:alter",
    summary="Change several settings of all brokers",
    status_code=204,
    openapi_extra=request_body(AlterSettingsBody, _BROKER_CHANGES),
)
async def alter_cluster_configs(cluster_id: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    wanted = await body_of(request, gateway, AlterSettingsBody)
    return await _alter(gateway, ConfigResourceType.BROKER, ALL_BROKERS, wanted)


@router.get(
    "/{cluster_id}/broker-configs/{name}",
    summary="Get a setting that was made for all brokers",
    responses=described(ClusterSetting, "The setting."),
)
async def get_cluster_config(cluster_id: str, name: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    entries = await gateway.admin.describe_configs(ConfigResourceType.BROKER, ALL_BROKERS)
    entry = _named(entries, name, f"No setting {name} was made for all brokers.")
    return json_response(_of_cluster(request, cluster_id, entry))


@router.put(
    "/{cluster_id}/broker-configs/{name}",
    summary="Set a setting of all brokers",
    status_code=204,
    openapi_extra=request_body(SetSettingBody, _VALUE),
)
async def put_cluster_config(cluster_id: str, name: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    wanted = await body_of(request, gateway, SetSettingBody)
    return await _set(gateway, ConfigResourceType.BROKER, ALL_BROKERS, name, wanted.value)


@router.delete(
    "/{cluster_id}/broker-configs/{name}",
    summary="Take back a setting of all brokers",
    status_code=204,
)
async def delete_cluster_config(cluster_id: str, name: str, request: Request) -> Response:
    gateway = await checked(request, cluster_id)
    return await _reset(gateway, ConfigResourceType.BROKER, ALL_BROKERS, name)


# --- changes and shapes ---------------------------------------------------------------------------------------------


async def _alter(gateway: Gateway, kind: ConfigResourceType, resource: str, wanted: AlterSettingsBody) -> Response:
    await gateway.admin.alter_configs(kind, resource, _changes(wanted.data), validate_only=bool(wanted.validate_only))
    return Response(status_code=NO_CONTENT)


def _changes(wanted: Sequence[SettingChange]) -> list[tuple[str, ConfigOperation, str | None]]:
    """Raises: RestError 422."""
    return [
        (change.name, _operation(change.operation), None if change.value is None else setting_text(change.value))
        for change in wanted
    ]


async def _set(gateway: Gateway, kind: ConfigResourceType, resource: str, name: str, value: SettingValue) -> Response:
    await gateway.admin.alter_configs(kind, resource, [(name, ConfigOperation.SET, setting_text(value))])
    return Response(status_code=NO_CONTENT)


async def _reset(gateway: Gateway, kind: ConfigResourceType, resource: str, name: str) -> Response:
    await gateway.admin.alter_configs(kind, resource, [(name, ConfigOperation.DELETE, None)])
    return Response(status_code=NO_CONTENT)


def _named(entries: Sequence[ConfigEntry], name: str, missing: str) -> ConfigEntry:
    """The setting of that name. Raises: RestError 404 with the message ``missing``."""
    for entry in entries:
        if entry.name == name:
            return entry
    raise RestError(404, missing)


def _operation(name: str | None) -> ConfigOperation:
    try:
        return ConfigOperation.SET if name is None else ConfigOperation[name.upper()]
    except KeyError:
        raise RestError(422, f"The operation {name!r} is not SET, DELETE, APPEND or SUBTRACT.") from None


def _of_topic(request: Request, cluster_id: str, topic: str, entry: ConfigEntry) -> TopicSetting:
    path = f"clusters/{cluster_id}/topics/{topic}/configs/{escaped(entry.name)}"
    resource = f"kafka={cluster_id}/topic={topic}/config={entry.name}"
    return TopicSetting(
        metadata=metadata(request, path, resource), cluster_id=cluster_id, topic_name=topic, **_fields(entry)
    )


def _of_broker(request: Request, cluster_id: str, broker_id: int, entry: ConfigEntry) -> BrokerSetting:
    path = f"clusters/{cluster_id}/brokers/{broker_id}/configs/{escaped(entry.name)}"
    resource = f"kafka={cluster_id}/broker={broker_id}/config={entry.name}"
    return BrokerSetting(
        metadata=metadata(request, path, resource), cluster_id=cluster_id, broker_id=broker_id, **_fields(entry)
    )


def _of_cluster(request: Request, cluster_id: str, entry: ConfigEntry) -> ClusterSetting:
    path = f"clusters/{cluster_id}/broker-configs/{escaped(entry.name)}"
    resource = f"kafka={cluster_id}/broker-config={entry.name}"
    return ClusterSetting(metadata=metadata(request, path, resource), cluster_id=cluster_id, **_fields(entry))


def _fields(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "is_default": entry.is_default,
        "is_read_only": entry.read_only,
        "is_sensitive": entry.sensitive,
        "source": entry.source,
        "synonyms": [SettingSynonym(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms],
    }
