"""Settings by Kafka's names, typed: the one place of every topic and broker setting that Firn knows.

The log, the tier and the handlers read a ``TopicConfig``: every setting that a topic can carry, with its effective
value. ``BrokerConfig`` is the same for a broker. A field is named like its Kafka setting with ``.`` and ``-`` turned into
``_``, and declares the setting by ``setting(…)``: default, type, bounds, broker-wide names and effect. ``TOPIC_DEFINITIONS`` and
``BROKER_DEFINITIONS`` (``topic_definitions.py``, ``broker_definitions.py``) are tables made from the fields.
Parsing (``values.py``), resolving, validation and describing follow them.

A topic's setting comes from, first found first taken (Kafka's order):

    the topic's own override                                    DYNAMIC_TOPIC_CONFIG
    an override of this broker, by a broker-wide name           DYNAMIC_BROKER_CONFIG
    an override of all brokers, by a broker-wide name           DYNAMIC_DEFAULT_BROKER_CONFIG
    a setting that the broker was started with                  STATIC_BROKER_CONFIG
    Firn's default                                              DEFAULT_CONFIG

Within one of these ``log.retention.ms`` comes before ``log.retention.minutes`` and that before ``log.retention.hours``.
Some defaults depend on a topic's other settings, so that one override is enough: ``remote.storage.enable`` is false for a
compacted topic, and ``local.retention.*`` is never more than ``retention.*``. ``firn.durability=object`` counts only where the
topic itself says it (new topics say it when it is the default), and is ``disk`` elsewhere.

The most used names are exported here. They import none of the definitions, so that child processes and Spark's tasks start
without them.

- ``topic``, ``topic_definitions``: ``TopicConfig``, which declares its settings, and the table of them
- ``broker``, ``broker_definitions``: the same of ``BrokerConfig``
- ``declaring``, ``kinds``, ``defining``: how a field declares its setting, and how the tables are made from fields
- ``definition``, ``values``, ``numbers``: the definition of a setting, and its values as text
- ``resolving``, ``validation``, ``describing``: effective values, checks, DescribeConfigs; ``group_bounds``: settings of groups
- ``client_metrics``: subscriptions to the metrics of clients (KIP-714)
- ``without_effect``: settings of Kafka that have no effect here
- ``listeners``, ``security_definitions``, ``connection_limits``: listeners; ``environment``, ``properties``: variables and files
"""

from app.configs.broker import BrokerConfig
from app.configs.topic import (
    Durability,
    InternalDurability,
    ProduceValidation,
    SchemaValidation,
    TierCompression,
    TimestampType,
    TopicConfig,
)

__all__ = [
    "BrokerConfig",
    "Durability",
    "InternalDurability",
    "ProduceValidation",
    "SchemaValidation",
    "TierCompression",
    "TimestampType",
    "TopicConfig",
]
