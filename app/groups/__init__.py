"""Consumer groups of the classic protocol, consumer groups of KIP-848, and share groups.

The state machines are pure: events go in, records and responses come out. The coordinators carry them out with
``app/coordinator/``.

- ``coordinator``: ``GroupCoordinator``; ``shard``: ``GroupShard``, all groups of one partition of ``__consumer_offsets``
- ``group``: the interface of a group; ``table``: groups by id; ``memory``: bounds of their memory
- ``counters``, ``metrics``: metrics

Classic protocol:

- ``classic``: ``ClassicGroup``; ``classic_member``: its members; ``embedded``: subscriptions inside the protocol's bytes

Consumer protocol (KIP-848):

- ``consumer``: ``ConsumerGroup``; ``consumer_records``: its records; ``subscriptions``: subscriptions and regular expressions
- ``assignors``: target assignments; ``reconciliation``: moves a member to its target
- ``migration``, ``classic_in_consumer``: migration between the protocols

Committed offsets:

- ``offsets``: ``OffsetStore``; ``cleanup``, ``deletion``, ``sweeps``: expiry and deletion of offsets

Share groups (KIP-932):

- ``share``: ``ShareGroup``, the members; ``share_records``: their records; ``share_sessions``: sessions
- ``share_leader``, ``share_partitions``, ``share_window``: the leader of a partition, which hands records out
- ``share_coordinator``, ``share_state``, ``share_states``, ``share_state_wire``: stored progress, and the way to it
"""
