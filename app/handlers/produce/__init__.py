"""Produce.

- ``produce``: from the frame to the log
- ``conditional``: appends of callers who name the end that they have read to
- ``schema_checks``: schemas of records, where a topic asks for it
- ``gathering``: appends several requests by one write; ``committing``: requests that wait for replicas
"""
