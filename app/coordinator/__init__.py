"""The base that the coordinators of groups, share groups and transactions share.

A coordinator leads partitions of an internal topic. It loads a partition by a replay of its records. An event appends records,
changes memory, and its response waits until the records are committed.

- ``shell``: ``Coordinator`` and the interface ``Shard`` of a state machine
- ``partition``: ``CoordinatedLog``, one led partition of an internal topic
- ``records``, ``record_type``: keys and values of records, in Kafka's schemas; ``schemas/`` is generated
- ``timers``: ``Timers``, many deadlines
- ``topics``: the internal topics, and the partition of a group or transactional id
"""
