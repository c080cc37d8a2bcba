"""Share groups (KIP-932): the leader of a partition hands records out, and a coordinator stores the progress.

- ``share_leader``: ``ShareLeader``, for one partition; ``share_states``: the way from a leader to the coordinator
- ``share_coordinator``: ``ShareCoordinator``, the leader of a partition of ``__share_group_state``
- ``leader_ends``: ends of topics that other brokers lead

The pure part is in ``core/``.
"""
