"""DescribeConfigs (key 32), AlterConfigs (33), IncrementalAlterConfigs (44) and ListConfigResources (74): settings.

``app/configs/`` defines the settings and their allowed values. The cluster image has the values that were set. Changes go through
the controller. A broker describes its own settings, and under the empty name the overrides for all brokers.

Tests: ``tests/handlers/test_admin_configs.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from app.configs.client_metrics import describe_client_metrics
from app.configs.describing import DescribedConfig, describe_broker
from app.configs.validation import TierMustBeEmpty
from app.configs.without_effect import GROUP_WITHOUT_EFFECT, TOPIC_WITHOUT_EFFECT, told
from app.core.errors import ErrorCode, FirnError, RequestRejected
from app.core.log_events import Event
from app.core.turns import run
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.mutations import Refusal, each, refusal, repeated
from app.handlers.base.partitions import CHANGED_BY_CLIENTS, check_not_owned
from app.handlers.base.portions import Split
from app.handlers.base.request import Request
from app.handlers.base.topic_settings import described_topic
from app.handlers.base.views import TopicsView
from app.metadata.changes import topic_changes
from app.metadata.changes.group_configs import describe_group
from app.metadata.changes.topic_changes import ConfigChange, LeaderEpochs, LeadersHaveChanged, check_topic_name
from app.metadata.image.records import ALL_BROKERS
from app.wire.apikeys import ApiKey
from app.wire.apis import alter_configs as full
from app.wire.apis import incremental_alter_configs as incremental
from app.wire.apis.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from app.wire.apis.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from app.wire.config_resources import ConfigOperation, ConfigResourceType

BROKER_LOGGER: Final = 8
"""A kind of resource that Kafka has and Firn does not."""
CLIENT_METRICS: Final = int(ConfigResourceType.CLIENT_METRICS)
_KINDS: Final = frozenset(
    {
        int(ConfigResourceType.TOPIC),
        int(ConfigResourceType.BROKER),
        BROKER_LOGGER,
        CLIENT_METRICS,
        int(ConfigResourceType.GROUP),
    }
)

NODE_ID_DIGITS_MAX: Final = 10
LEADERS_ASKED_MAX: Final = 3
"""How often the leaders of a topic are asked again because one of them has changed meanwhile."""
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

Resource = tuple[int, str]
"""Kind and name."""


# --- DescribeConfigs ------------------------------------------------------------------------------------------------


def describe_configs(context: TopicsView, request: Request, message: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Return the settings of each resource with their values, sources and documentation."""
    del request
    results = []
    for resource in message.resources:
        result = DescribeConfigsResult(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        results.append(result)
        try:
            described = _described(context, resource)
        except FirnError as error:
            result.error_code, result.error_message = refusal(error)
            continue
        wanted = frozenset(resource.configuration_keys or ())
        result.configs = [_entry(config, message) for config in described if not wanted or config.name in wanted]
    return DescribeConfigsResponse(results=results)


def _described(context: TopicsView, resource: DescribeConfigsResource) -> list[DescribedConfig]:
    name = resource.resource_name
    match resource.resource_type:
        case ConfigResourceType.TOPIC:
            check_topic_name(name)
            topic = context.image.topic(name)
            if topic is None:
                raise RequestRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
            return described_topic(context, topic.configs)
        case ConfigResourceType.BROKER:
            said = context.image.broker_configs
            for_all = said.get(ALL_BROKERS, _NOTHING)
            if name == "":
                described = describe_broker(context.config, cluster_overrides=for_all)
                return [config for config in described if config.name in for_all]
            _check_node_name(name)
            if int(name) != context.config.node_id:
                raise RequestRejected(
                    ErrorCode.INVALID_REQUEST,
                    f"Unexpected broker id, expected {context.config.node_id} or empty string, but received {name}.",
                )
            own = said.get(context.config.node_id, _NOTHING)
            return describe_broker(context.config, broker_overrides=own, cluster_overrides=for_all)
        case ConfigResourceType.GROUP:
            if not name:
                raise RequestRejected(ErrorCode.INVALID_REQUEST, "Group name can't be empty.")
            return describe_group(context.effective, context.image.group_configs.get(name, _NOTHING))
        case ConfigResourceType.CLIENT_METRICS:
            if not name:
                raise RequestRejected(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty.")
            return describe_client_metrics(context.image.client_metrics.get(name, _NOTHING))
        case kind:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}.")


def _check_node_name(name: str) -> None:
    if not (name.isascii() and name.isdecimal() and len(name) <= NODE_ID_DIGITS_MAX):
        raise RequestRejected(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}.")


def _entry(config: DescribedConfig, message: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=config.name,
        value=config.value,
        read_only=config.read_only,
        config_source=config.source,
        is_sensitive=config.definition.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=said.name, value=said.value, source=said.source) for said in config.synonyms
        ]
        if message.include_synonyms
        else [],
        config_type=config.definition.type,
        documentation=config.definition.documentation if message.include_documentation else None,
    )


def refuse_describe_configs(
    request: Request, message: DescribeConfigsRequest, code: ErrorCode, sentence: str
) -> DescribeConfigsResponse:
    del request
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResult(
                error_code=code,
                error_message=sentence,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in message.resources
        ]
    )


# --- AlterConfigs, IncrementalAlterConfigs --------------------------------------------------------------------------


def _check_resource(resource: Resource, twice: set[Resource]) -> None:
    if resource in twice:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    kind, name = resource
    if kind == ConfigResourceType.BROKER and name:
        _check_node_name(name)


async def alter_configs(
    context: TopicsView, request: Request, message: full.AlterConfigsRequest
) -> full.AlterConfigsResponse:
    """Replace all overrides of each resource. A setting that is not named goes back to its default."""
    del request
    resources = [(resource.resource_type, resource.resource_name) for resource in message.resources]
    twice = await run(repeated(resources))

    async def replace(resource: full.AlterConfigsResource) -> Mapping[str, str]:
        key = (resource.resource_type, resource.resource_name)
        _check_resource(key, twice)
        if resource.resource_type == ConfigResourceType.TOPIC:
            check_not_owned(resource.resource_name)  # settings that are not named would go back to their defaults
        configs = {config.name: config.value for config in resource.configs}
        if len(configs) != len(resource.configs):
            raise RequestRejected(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys.")
        controller = context.controller
        return await _safely(
            context,
            key,
            lambda nothing_tiered: controller.submit(
                lambda draft, around: topic_changes.replace_configs.steps(
                    draft,
                    around,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=configs,
                    nothing_tiered=nothing_tiered,
                ),
                validate_only=message.validate_only,
            ),
        )

    answers = await each(message.resources, replace)
    if not message.validate_only:
        for resource, answer in zip(message.resources, answers, strict=True):
            if not isinstance(answer, Refusal):
                names = [config.name for config in resource.configs]
                _tell_useless(context, resource.resource_type, resource.resource_name, names)
    return full.AlterConfigsResponse(
        responses=[
            full.AlterConfigsResourceResponse(*_outcome(answer), *resource)
            for resource, answer in zip(resources, answers, strict=True)
        ]
    )


def refuse_alter_configs(
    request: Request, message: full.AlterConfigsRequest, code: ErrorCode, sentence: str
) -> full.AlterConfigsResponse:
    del request
    return full.AlterConfigsResponse(
        responses=[
            full.AlterConfigsResourceResponse(code, sentence, resource.resource_type, resource.resource_name)
            for resource in message.resources
        ]
    )


async def incremental_alter_configs(
    context: TopicsView, request: Request, message: incremental.IncrementalAlterConfigsRequest
) -> incremental.IncrementalAlterConfigsResponse:
    """Change some overrides of each resource and leave the others (KIP-339)."""
    del request
    resources = [(resource.resource_type, resource.resource_name) for resource in message.resources]
    twice = await run(repeated(resources))

    async def change(resource: incremental.AlterConfigsResource) -> Mapping[str, str]:
        key = (resource.resource_type, resource.resource_name)
        _check_resource(key, twice)
        if resource.resource_type == ConfigResourceType.TOPIC and any(
            config.name not in CHANGED_BY_CLIENTS for config in resource.configs
        ):
            check_not_owned(resource.resource_name)
        controller, changes = context.controller, _changes(resource.configs)
        return await _safely(
            context,
            key,
            lambda nothing_tiered: controller.submit(
                lambda draft, around: topic_changes.alter_configs.steps(
                    draft,
                    around,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    changes=changes,
                    nothing_tiered=nothing_tiered,
                ),
                validate_only=message.validate_only,
            ),
        )

    answers = await each(message.resources, change)
    if not message.validate_only:
        for resource, answer in zip(message.resources, answers, strict=True):
            if not isinstance(answer, Refusal):
                names = [
                    config.name for config in resource.configs if config.config_operation != ConfigOperation.DELETE
                ]
                _tell_useless(context, resource.resource_type, resource.resource_name, names)
    return incremental.IncrementalAlterConfigsResponse(
        responses=[
            incremental.AlterConfigsResourceResponse(*_outcome(answer), *resource)
            for resource, answer in zip(resources, answers, strict=True)
        ]
    )


async def _safely(
    context: TopicsView, resource: Resource, change: Callable[[LeaderEpochs | None], Awaitable[Mapping[str, str]]]
) -> Mapping[str, str]:
    """Make a change that some topics allow only while nothing of them is in the store.

    No leader begins a copy between its look at the manifests and the change, which turns copying off.
    Raises: as ``change``, and as ``HoldsOfLeaders.held``.
    """
    try:
        return await change(None)
    except TierMustBeEmpty as refused:
        for attempt in range(1, LEADERS_ASKED_MAX + 1):
            topic = context.image.topic(resource[1])
            if topic is None:
                raise
            try:
                async with context.holds_of_leaders.held(topic) as held:
                    if held.segments:
                        raise RequestRejected(refused.code, f"{refused} There are {held.segments} of them.") from None
                    return await change(held.leader_epochs)
            except LeadersHaveChanged:
                if attempt == LEADERS_ASKED_MAX:
                    raise
        raise


def _tell_useless(context: TopicsView, kind: int, name: str, names: Sequence[str]) -> None:
    """One line for the operator about settings that were accepted and change nothing."""
    if kind == ConfigResourceType.TOPIC:
        useless, whose = told(names, TOPIC_WITHOUT_EFFECT), f"topic {name}"
    elif kind == ConfigResourceType.BROKER:
        useless, whose = told(names), f"broker {name}" if name else "all brokers"
    elif kind == ConfigResourceType.GROUP:
        useless, whose = told(names, GROUP_WITHOUT_EFFECT), f"group {name}"
    else:
        return
    if useless:
        context.client_line(
            Event.SETTINGS_WITHOUT_EFFECT.line(f"settings of {whose} that mean nothing here: {useless}")
        )


def _changes(configs: Sequence[incremental.AlterableConfig]) -> list[ConfigChange]:
    for config in configs:
        if not ConfigOperation.SET <= config.config_operation <= ConfigOperation.SUBTRACT:
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST, f"There is no operation {config.config_operation} on a config."
            )
    return [ConfigChange(config.name, ConfigOperation(config.config_operation), config.value) for config in configs]


def _outcome(answer: object) -> tuple[int, str | None]:
    return (answer.code, answer.sentence) if isinstance(answer, Refusal) else (ErrorCode.NONE, None)


def refuse_incremental_alter_configs(
    request: Request, message: incremental.IncrementalAlterConfigsRequest, code: ErrorCode, sentence: str
) -> incremental.IncrementalAlterConfigsResponse:
    del request
    return incremental.IncrementalAlterConfigsResponse(
        responses=[
            incremental.AlterConfigsResourceResponse(code, sentence, resource.resource_type, resource.resource_name)
            for resource in message.resources
        ]
    )


# --- ListConfigResources --------------------------------------------------------------------------------------------


def list_config_resources(
    context: TopicsView, request: Request, message: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Return the resources that can have settings: topics, brokers, groups and subscriptions to the metrics of clients. Version 0
    lists the last ones alone.

    Raises: RequestRejected UNSUPPORTED_VERSION for a kind of resource that Kafka does not know either.
    """
    kinds = frozenset(message.resource_types) if request.api_version >= 1 else frozenset({CLIENT_METRICS})
    unknown = kinds - _KINDS
    if unknown:
        raise RequestRejected(ErrorCode.UNSUPPORTED_VERSION, f"There is no config resource type {min(unknown)}.")
    kinds = kinds or _KINDS
    image = context.image
    resources = []
    if ConfigResourceType.TOPIC in kinds:
        resources += [ConfigResource(name, int(ConfigResourceType.TOPIC)) for name in sorted(image.topics_by_name)]
    if ConfigResourceType.BROKER in kinds:
        resources += [ConfigResource(str(node_id), int(ConfigResourceType.BROKER)) for node_id in sorted(image.brokers)]
    if ConfigResourceType.GROUP in kinds:
        resources += [
            ConfigResource(group_id, int(ConfigResourceType.GROUP)) for group_id in sorted(image.group_configs)
        ]
    if CLIENT_METRICS in kinds:
        resources += [ConfigResource(name, CLIENT_METRICS) for name in sorted(image.client_metrics)]
    return ListConfigResourcesResponse(config_resources=resources)


def refuse_list_config_resources(
    request: Request, message: ListConfigResourcesRequest, code: ErrorCode, sentence: str
) -> ListConfigResourcesResponse:
    del request, message, sentence
    return ListConfigResourcesResponse(error_code=code)


APIS: Final[ApiTable] = {
    ApiKey.DESCRIBE_CONFIGS: Api(
        describe_configs,
        refuse_describe_configs,
        # A resource has about a hundred settings: some 0.3 ms.
        split=Split("resources", "results", names=("resource_type", "resource_name"), at_once=8),
    ),
    ApiKey.ALTER_CONFIGS: Api(alter_configs, refuse_alter_configs),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(incremental_alter_configs, refuse_incremental_alter_configs),
    ApiKey.LIST_CONFIG_RESOURCES: Api(list_config_resources, refuse_list_config_resources),
}
