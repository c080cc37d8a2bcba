"""Responses to clients: the fast paths of Produce and Fetch, and one module for each family of APIs.

``session`` takes whole frames from a connection. It serves Produce and Fetch itself, and finds the handler of every other API in
the tables of ``dispatch``. A family's module has a table ``APIS`` of ``Api``; no family imports another one.

The parts that all handlers share:

- ``session``: ``Session``; ``server``: the Kafka listeners; ``dispatch``: the tables of all families
- ``api``: ``Api``, the row of an API
- ``context``: ``Context`` (the parts of the broker) and ``Request``
- ``client``: ``Client``, a connection as Produce and Fetch see it
- ``callers``: ``Caller`` and ``Rights``; ``doors``: logins before the first request; ``authorising``: the right that each API needs
- ``portions``: long requests in portions (INV-15); ``serving``: names the request that the loop is busy with
- ``partitions``: finds a partition and checks it; ``mutations``, ``in_time``: shared by changes of the cluster
- ``passing_on``: passes requests on to the controller; ``acknowledging``: holds responses back after a possible replacement
- ``metrics``, ``zones``: counters; ``auditing``, ``audited_changes``: the audit log
- ``client_quotas``, ``quota_leases``: quotas

Produce:

- ``produce``: from the frame to the log; ``produce_shape``: recognises repeated requests
- ``gathering``: appends several requests by one write; ``committing``: requests that wait for replicas
- ``preparations``: memory for batches that need work; ``admission``: transactional batches; ``held_sequences``: refused sequences

Fetch:

- ``fetch``: plans a fetch, and ``ParkedFetch``; ``fetch_long``: requests of many partitions
- ``fetch_shape``: recognises repeated requests
- ``fetch_sessions``: sessions (KIP-227); ``fetch_fan_out``: one response for many consumers
- ``followers``, ``parked_followers``: fetches of followers
- ``offsets``, ``epochs``: ListOffsets, OffsetForLeaderEpoch
- ``share_fetch``: ShareFetch, ShareAcknowledge

Topics, settings and the cluster:

- ``metadata``, ``metadata_cache``: Metadata; ``cluster``: DescribeCluster; ``api_versions``, ``logins``: ApiVersions and SASL
- ``topics``, ``configs``, ``topic_settings``, ``log_dirs``, ``operations``: topics, settings, log directories
- ``elections``, ``reassignments``, ``features``, ``quorum``: leaders, moves, levels, the quorum
- ``acls``, ``scram_users``, ``delegation_tokens``, ``quotas``: access

Groups and transactions:

- ``coordinators``, ``groups``, ``group_requests``, ``consumer_groups``: coordinators and groups
- ``committed_offsets``, ``transactional_offsets``, ``commits``: committed offsets
- ``share_groups``, ``share_offsets``, ``share_states``: share groups
- ``transactions``, ``transaction_listing``, ``transaction_looks``, ``producer_ids``, ``producer_id_block``: transactions

Firn's own:

- ``firn_api``: metrics, the tier's status and drains; ``draining``: a drain
- ``controlling``: requests between brokers and the controller; ``manifests``: manifest entries for followers
- ``copy_holds``: held copies

How a Produce goes: a request of the usual form is read by two structs. ``ProduceShape`` remembers its constant bytes, so that
the next request of that shape costs one comparison. A shape belongs to the ``Rights`` of its caller: other principals, and the
same principal under new rules, do not find it. Requests that came together are appended together: those of one client, and
those of all clients of one turn of the loop if several clients send. Until then they count as not arrived. If the shared write
fails, nothing was appended, and each request is served by itself. A first batch, a roll or a retry takes the general way at its
place. A request of one client never waits for others. Batches that must be decompressed, checked or recompressed queue for
memory (``firn.preparation.bytes.max``).

How a Fetch goes: a request without a session that differs from the connection's previous one only in the offset is not decoded
again. If many consumers ask for the same offset, only the first two requests look up the range. A parked request costs no task.
It is woken by an append, a chunk, its timer, or a change of access rules.
"""
