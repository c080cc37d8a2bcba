"""Payloads of records by their schemas. Pure.

- ``prefix``: the id of a schema in a header, or before a payload
- ``avro``, ``json_schema``, ``protobuf``: reads a payload, and says why it is no value of its schema
- ``patterns``: patterns and formats of JSON Schema
- ``reading``: chooses one of them; ``faults``: their error
"""
