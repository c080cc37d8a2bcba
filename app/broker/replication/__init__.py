"""Replication: tasks of this broker as a follower and as a leader.

- ``followers``: fetches from leaders; ``in_sync_sets``: proposes in-sync sets
- ``high_watermark_file``: checkpoint of high watermarks; ``replication_metrics``: gauges
"""
