"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: settings of topics and brokers.

What a setting is and what may be said of it is in ``app/configs.py``; what was said is in the cluster image; changes go
through the controller. A broker describes itself and the overrides of all brokers; another broker describes itself.
"""

from __future__ import annotations

from typing import Final

BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
"""The only kind of version 0 of ListConfigResources, which was called ListClientMetricsResources then."""
