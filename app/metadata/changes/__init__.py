"""Changes of the cluster, pure: functions that take a draft of the next image, and return records and a result.

- ``topic_changes``: topics, partitions and settings, and ``Planned``, the result of every change
- ``broker_changes``: registration, fencing, in-sync sets; ``leader_changes``, ``terms``: elections and their rules
- ``allowed_elections``: topics whose settings allow more elections than before
- ``reassignments``, ``internal_topics``: moves, and more replicas of internal topics
- ``acl_changes``, ``scram_changes``, ``token_changes``, ``quotas``, ``group_configs``, ``features``: access, quotas, levels
- ``durability_changes``, ``wal_changes``, ``wal_store_changes``: object durability (ADR 0037)
"""
