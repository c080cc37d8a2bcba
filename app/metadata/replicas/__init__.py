"""Rules for single partitions: where their replicas are, and which one leads. Pure; they write no records.

- ``elections``, ``log_leaders``: who leads a partition, with replicas and in write-ahead logs
- ``replica_changes``: the effect of a broker's event on one partition
- ``placement``, ``rebalancing``: where replicas are; ``log_balance``: which brokers should lead partitions in write-ahead logs
"""
