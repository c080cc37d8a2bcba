"""Routes of Confluent's REST v3. Each is a thin client of the brokers, and has the rights of its caller alone.

- ``topics``: clusters, brokers, topics, partitions, replicas and settings
- ``records``, ``record_batches``: produce
"""
