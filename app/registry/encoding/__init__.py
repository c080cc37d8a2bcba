"""Values of records in JSON to the bytes that their schema says. Pure. ``app/registry/payloads`` reads them.

- ``avro``: Avro's JSON encoding to its binary encoding
- ``forms``: chooses by the type of the schema, for both ways
"""
