"""The leader's part of the schema registry: the condition under which records are appended to `_schemas` (ADR 0041). Its parts:

- ``records``: ``Meaning``, a record as the leader understands it; pure
- ``shard``: ``SchemaShard``, the ids and keys of the log, and the checks of an append; pure
- ``reservations``: ``Reservations``, callers who have lost three times; pure
- ``strength``: the settings that the topic must have; pure
- ``coordinator``: ``SchemaCoordinator``, replay, appends and reads on the broker that leads the topic
"""
