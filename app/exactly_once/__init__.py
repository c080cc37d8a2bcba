"""Exactly once over HTTP: the results of keyed requests, and the condition under which a result is appended (ADR 0043). Its parts:

- ``records``: ``Result`` and ``RequestKey``, the records of `__http_requests`; pure
- ``index``: ``KeyIndex``, from the hash of a key to the offset of its result; pure
- ``columns``: ``Columns``, the results and markers of a long log, which are read together; pure
- ``ages``: ``Ages``, the ages of results without trust in a clock, and their number for each principal; pure
- ``bounds``: ``Usage`` and ``Bounds``, limits of keys and bytes; pure
- ``shard``: ``RequestShard``, the condition, open results and reservations of one partition; pure
- ``keys``: the header with the key, and the digest of a request; pure
- ``deciding``: decisions about open results of a partition that may have lost its newest records; pure
- ``attempt``: ``Attempt``, the steps of one keyed request in an HTTP process; pure
- ``transactional_ids``: ``TransactionalIds``, which chooses the transactional id of a keyed request; pure
- ``coordinator``: ``RequestCoordinator``, look-ups, appends and expiry on the broker that leads a partition
- ``record_fates``: ``RecordFates``, which asks other brokers for the fate of a record
- ``strength``: whether a result partition is at least as durable as the data; pure
"""
