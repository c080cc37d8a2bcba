"""The image of the cluster: the state that results from the entries of the cluster log. Pure.

- ``cluster``: every kind of record, ``ClusterImage`` and its draft ``ImageDraft``
- ``wal_ranges``: where the records of a partition are in write-ahead logs
"""
