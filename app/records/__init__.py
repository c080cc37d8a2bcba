"""Kafka's record format, v2, pure: bytes in, bytes out."""
