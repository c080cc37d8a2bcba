"""The pure part of share groups: members, windows of records, and stored progress.

- ``share``: ``ShareGroup``, the members; ``share_records``: their records; ``share_sessions``: sessions
- ``share_window``: the offset runs of a partition and their state; ``share_partitions``: partitions that a leader hands out
- ``share_state``, ``share_state_wire``: stored progress, and its bytes
- ``share_counters``: counters
"""
