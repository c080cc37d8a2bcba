"""Consumer groups of the classic protocol, consumer groups of KIP-848, and share groups.

The state machines are pure: events go in, records and responses come out. The coordinators carry them out with
``app/coordinator/``.

- ``coordinator``: ``GroupCoordinator``; ``shard``: ``GroupShard``, all groups of one partition of ``__consumer_offsets``
- ``group``: the interface of a group; ``table``: groups by id; ``memory``: bounds of their memory
- ``counters``, ``metrics``: metrics; ``topic_lags``: how far groups are behind in some topics

Folders:

- ``classic/``: the classic protocol; ``consumer/``: the consumer protocol (KIP-848), pure
- ``migration/``: migration between the two protocols
- ``share/``: share groups (KIP-932)
- ``offsets/``: committed offsets, pure

In the classic protocol a rebalance is a barrier, and one member computes the assignment. In the consumer protocol there is no
barrier: a changed subscription raises the group epoch, an assignor computes the target of that epoch, and each member moves
towards it with its own heartbeats. It revokes partitions, confirms this, and then gets partitions that no other member holds.
The first member of the consumer protocol converts a classic group; the last one to leave converts it back (ADR 0008).

In a share group several members may read one partition. The leader of the topic's partition keeps a window of offset runs with
the state of the records, and stores it at the leader of a partition of ``__share_group_state``. Acquisitions are not stored:
they end with the leadership (ADR 0013, ADR 0027).
"""
