"""The write-ahead log in the bucket (ADR 0037)."""
