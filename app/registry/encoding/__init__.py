"""Values of records in JSON to the bytes that their schema says. Pure. ``app/registry/payloads`` reads them.

- ``avro``: Avro's JSON encoding to its binary encoding
- ``protobuf``: Protobuf's JSON form to messages and back
- ``forms``: chooses by the type of the schema, for both ways
"""
