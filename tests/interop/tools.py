"""Apache Kafka's tools."""

from __future__ import annotations

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
DUMP = "org.apache.kafka.tools.DumpLogSegments"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
