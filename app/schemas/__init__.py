"""The brokers' part of the schema registry. The leader of `_schemas` decides which records are appended to it (ADR 0041). Leaders
of other topics check the schemas of produced records (ADR 0044). Its parts:

- ``records``: ``Meaning``, a record as the leader understands it; pure
- ``shard``: ``SchemaShard``, the ids and keys of the log, and the checks of an append; pure
- ``reservations``: ``Reservations``, callers who have lost three times; pure
- ``strength``: the settings that the topic must have; pure
- ``coordinator``: ``SchemaCoordinator``, replay, appends and reads on the broker that leads the topic
- ``batch_ids``: the ids of schemas that records of a batch name; pure
- ``knowing``: whether the registry knows an id; pure
- ``follower``: ``SchemaFollower``, the registry as this broker has read it
- ``registry_reads``: reads of the log on the broker that leads it
"""
