"""A broker's view of the cluster log, and its registration in it.

- ``view``: ``ClusterView``, the newest image of this broker; ``follower``: a read-only reader for tools and jobs
- ``registration``: ``Registration``, the binding of a node id to a data directory
- ``wal_store``: in which store the write-ahead logs are
- ``standing``: how the cluster stands, for people
"""
