"""Produce.

- ``produce``: from the frame to the log
- ``conditional``: appends of callers who name the end that they have read to
- ``keyed``: all steps of one try of a keyed request
- ``schema_checks``: schemas of records, where a topic asks for it
- ``gathering``: appends several requests by one write; ``committing``: requests that wait for replicas
"""
