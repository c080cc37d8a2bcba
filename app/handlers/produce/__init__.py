"""Produce.

- ``produce``: from the frame to the log
- ``schema_checks``: schemas of records, where a topic asks for it
- ``gathering``: appends several requests by one write; ``committing``: requests that wait for replicas
"""
