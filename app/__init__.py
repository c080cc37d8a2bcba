"""Firn: a Kafka-protocol log service whose home is the object store."""

__version__ = "0.1.1"
