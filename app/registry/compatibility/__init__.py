"""Whether data of one schema can be read with another.

- ``levels``: the levels, and the pairs of schemas that each compares
- ``findings``: a reason why data cannot be read
- ``avro``: Avro's schema resolution
- ``json_schema``: which data a JSON schema accepts
- ``protobuf``: fields by their numbers, by the rules of Confluent's documents
"""
