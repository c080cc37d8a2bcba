"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: settings of topics and brokers.

What a setting is and what may be said of it is in ``app/configs.py``; what was said is in the cluster image; changes go
through the controller. A broker describes itself and the overrides of all brokers; another broker describes itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.configs import ConfigSource, DescribedConfig, describe_broker, describe_topic
from app.errors import ErrorCode, FirnError, RequestRejected
from app.handlers.api import Api, ApiTable
from app.handlers.changes import change_code
from app.handlers.context import Context, Request
from app.metadata.cluster import ConfigOperation, ConfigResource, ResourceType
from app.wire.apikeys import ApiKey
from app.wire.apis import alter_configs as full
from app.wire.apis import incremental_alter_configs as incremental
from app.wire.apis import list_config_resources as listing
from app.wire.apis.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
"""The only kind of version 0 of ListConfigResources, which was called ListClientMetricsResources then."""
