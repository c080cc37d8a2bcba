"""An asyncio client of the Kafka protocol, used by the command line, the HTTP process, and brokers among themselves.

- ``connection``: ``KafkaConnection``, one connection; ``security``: TLS and logins; ``retry``: back-off
- ``cluster``: ``ClusterClient``, brokers, leaders and a connection to each
- ``producer``, ``partitioner``, ``transactions``: ``Producer`` and its transactions; ``consumer``: ``Consumer``
- ``transactional_batches``: one batch for each partition in a transaction, with an offset each
- ``conditional_appends``: ``ConditionalWriter``, batches on condition that the partition was read to its end
- ``feature_levels``: whether the cluster knows a request
- ``admin``, ``groups``: ``AdminClient``, ``GroupClient``; ``group_member``: ``ActiveMember``, a member of a group
- ``offset_targets``: the offsets to which a group is reset
- ``traced``: spans of requests, in a process that traces
- ``schema_log``: ``BrokerSchemaLog``, the log of schemas
"""
