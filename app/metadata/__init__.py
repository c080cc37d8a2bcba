"""The metadata of a cluster: the numbered log, and the cluster log and segment manifests that are built on it.

A *change of the cluster* is a pure function that takes a draft of the next image and returns records. The controller collects
changes and appends them as one entry of the cluster log. Every broker reads the entries and replaces its image.

The numbered log, the primitive under every durable decision:

- ``numbered_log``: ``NumberedLog``, the shell; ``append_attempt``: one append as a pure state machine
- ``log_format``: bytes of entries and snapshots; ``log_proofs``: proofs of who wrote them (ADR 0036)
- ``layout``: every object key of a cluster

Segment manifests:

- ``manifest``: ``SegmentManifest``; ``manifest_state``: ``ManifestState``, pure, the rules for its changes
- ``manifest_entries``: entries at hand for followers; ``manifest_listing``: lists the manifests of many partitions

The image of the cluster:

- ``cluster``: every kind of record, ``ClusterImage`` and its draft ``ImageDraft``
- ``view``: ``ClusterView``, the newest image of this broker; ``follower``: a read-only reader for tools and jobs
- ``standing``: how the cluster stands, for people
- ``wal_ranges``, ``wal_store``: where records in write-ahead logs are, and in which store

Changes of the cluster, pure:

- ``changes``: topics, partitions and settings; ``cluster_changes``: ``ClusterChanges``, the interface through which handlers ask
- ``broker_changes``: registration, fencing, in-sync sets; ``replica_changes``: the effect of such an event on one partition
- ``elections``, ``leader_changes``, ``log_leaders``, ``terms``: who leads a partition
- ``placement``, ``reassignments``, ``rebalancing``, ``internal_topics``, ``log_balance``: where replicas and leaderships are
- ``acl_changes``, ``scram_changes``, ``token_changes``, ``quotas``, ``group_configs``, ``features``: access, quotas, levels
- ``durability_changes``, ``wal_changes``, ``wal_store_changes``: object durability (ADR 0037)

The controller:

- ``controller``: ``Controller``, the only writer of the cluster log; ``decisions``: its decisions, pure
- ``candidacy``: when a broker tries to become the controller, pure
- ``desk``: ``Desk``, the controller's service for other brokers; ``broker_sessions``: which brokers are alive
- ``log_ends``: ends write-ahead logs of brokers that no longer lead

The membership of one broker:

- ``membership``: ``Membership``, a broker's view, registration and controller together
- ``member``: ``ClusterMember``, the life of one of several brokers; ``control``: requests between brokers
- ``pulses``: a thread beside the loop reports to other brokers when the loop turned last
- ``registration``, ``node_ids``, ``place``, ``liveness``, ``redis_liveness``: node ids, and which directory may use one
- ``isolation``, ``pace``: when a broker may no longer trust its own view

The cluster log binds a node id to a directory id. The bound directory starts at once. Another directory may start only with
``--take-over``, or if the bound broker has been silent for 30 s and does not respond at its address. The new broker binds its
directory by an append, and notifies the old one before it serves (ADR 0018).

In a cluster of several brokers a member registers, sends heartbeats, reads entries, and becomes a candidate when the controller
is gone. The controller fences brokers that it does not hear, lets preferred leaders lead again, and gives internal topics more
replicas as brokers join. Loops of a cluster at rest wait for events and deadlines; waits that need not be exact end at shared
moments.
"""
