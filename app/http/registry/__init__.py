"""The schema registry's routes, by the conventions of Confluent's Schema Registry API. Decisions are in ``app/registry``.

- ``serving``: adds all this to the application
- ``followed``: a caller's view of the log, read on by each request
- ``service``: registers, looks up, compares and deletes schemas
- ``parsing_work``: parsing and comparing in threads, with the newest models kept
- ``record_schemas``: encodes and decodes keys and values of records; ``record_encoding``: those of REST v3
- ``requests``: parts of requests: subjects, versions, flags, bodies
- ``shapes``: the types of answers, for the OpenAPI document
- ``parameters``: the query parameters of each route, for the OpenAPI document
- ``answers``: parts of answers: versions, refusals
- ``paths``: the base URL of a context, and names with a slash
- ``subjects``, ``ids``, ``settings``, ``compatibility``, ``contexts``: routes

Tests: ``tests/http/registry/test_routes.py``.
"""
