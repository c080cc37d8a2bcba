"""One module for each family of APIs. No family imports another one. Each has a table ``APIS`` of ``Api``.

- ``offsets``: ListOffsets, OffsetForLeaderEpoch; ``share_fetch``: ShareFetch, ShareAcknowledge

Topics, settings and the cluster:

- ``metadata``, ``cluster``: Metadata, DescribeCluster; ``handshakes``: ApiVersions and SASL
- ``topics``, ``configs``, ``log_dirs``: topics, settings, log directories
- ``elections``, ``reassignments``, ``features``, ``quorum``: leaders, moves, levels, the quorum
- ``acls``, ``scram_users``, ``delegation_tokens``, ``quotas``: access

Groups and transactions:

- ``coordinators``, ``groups``, ``consumer_groups``: coordinators and groups
- ``committed_offsets``, ``transactional_offsets``: committed offsets
- ``share_groups``, ``share_offsets``, ``share_states``: share groups
- ``transactions``, ``transaction_listing``, ``producer_ids``: transactions

Firn's own:

- ``firn_api``: metrics, the tier's status and drains
- ``passing_on``: passes requests on to the controller
- ``controlling``: requests between brokers and the controller; ``manifests``: manifest entries for followers
- ``copy_holds``: held copies; ``schemas``: the log of the schema registry; ``requests``: results of keyed requests over HTTP
- ``telemetry``: metrics that clients push
"""
