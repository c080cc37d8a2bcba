"""Partitions as a broker has them: its role, the leader, the in-sync set, and the high watermark.

These modules stand between the handlers and coordinators, which ask for partitions, and ``app/hot/``, which keeps records on the
disk.

- ``partition``: ``Partition`` and ``PartitionTable``; ``roles``: the role that an image gives this broker, pure
- ``in_sync``: ``InSync``, how far each replica has stored, pure; ``looks``: which partitions are due for a check, pure
- ``commits``: ``CommitQueue``, requests that wait for the high watermark
- ``following``: a follower's decision about a leader's response, pure; ``followed_tier``: its view of the tier
- ``reading``: ``PartitionReads``, reads across the local log and the object store
- ``selecting``: the replica for a consumer (KIP-392), pure; ``throttle``: replication throttles (KIP-73), pure

The record of a partition keeps the leader epoch of its last unclean election. Only that lets a follower truncate below its high
watermark. ``Partition.followed`` says as of which image a partition is settled.
"""
