"""Texts of schemas in, models out. A parser raises ``SchemaInvalid`` for every text that is no schema, and nothing else.

- ``schemas``: the types that all parsers share, and the choice of the parser
- ``limits``: bytes, depth and steps of a schema
- ``avro``: Avro
- ``json_schema``: JSON Schema
- ``protobuf/``: Protobuf
"""
