"""Routes of Confluent's REST v3. Each is a thin client of the brokers, and has the rights of its caller alone.

- ``resources``: the shape of responses, links and pages
- ``clusters``, ``topics``, ``configs``: clusters and brokers; topics, partitions and replicas; settings
- ``groups``, ``share_groups``: groups, members, assignments and lags
- ``acls``, ``reassignments``: access control lists; partitions that move to other brokers
- ``records``, ``record_batches``, ``keyed_records``, ``record_reads``: produce and read
"""
