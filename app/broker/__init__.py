"""The composition root: the only place that builds clocks, sockets, stores and processes.

Nothing is imported here: ``process`` starts the store process before it imports the modules that a node needs, and commands that
only need a clock load no broker.

- ``process``: ``Broker``, the process; ``node``: ``Node``, a broker inside one event loop; ``children``: child processes
- ``running``, ``service``, ``health``, ``http_address``, ``spot_notice``: the process seen from outside
- ``loop_watch``, ``late_tls``: watches over the event loop, and over late errors of TLS

Partitions:

- ``partitions``: ``Partitions`` brings the partitions of this broker in line with the image
- ``sweeping``: deletes objects of deleted topics; ``cleaning``: the cleaner process
- ``manifest_copies``: local copies of manifests; ``lost_directory``: log lines for a start on a new directory

Replication and the cluster:

- ``followers``: fetches from leaders; ``in_sync_sets``: proposes in-sync sets; ``high_watermarks``: checkpoint of high watermarks
- ``tier_views``: followers' views of manifests; ``replication_metrics``: gauges
- ``control_link``, ``transaction_calls``, ``places``: calls to other brokers; ``pulse_thread``: those that need no loop
- ``node_id``, ``last_registration``: node id and last broker epoch of a data directory

Object durability (ADR 0037):

- ``write_ahead``: ``WriteAhead``, the write-ahead log of this broker
- ``write_ahead_restore``, ``write_ahead_release``, ``write_ahead_sweep``: take-over, release and deletion
- ``durability_changes``: the leader's part of a change of durability

Security, quotas and costs:

- ``doors``, ``connection_limits``, ``first_users``, ``log_keys``, ``token_keys``, ``token_sweep``: listeners, users and keys
- ``broker_audit``, ``audit_log``, ``audit_topic``: the audit log
- ``quota_tokens``: leases of cluster-wide quotas; ``spending``: the measured bill

After a clean stop there is a marker, one file with the state of all logs, and the last position of every manifest. The next
start of the node id serves from its local copies of manifests, and checks the store afterwards. After any other stop manifests
are listed while logs are opened and the cluster log is read.

A partition goes offline alone if its manifest or last segment is damaged or missing, if segment objects exist but the manifest
is empty, or if segment objects above the tiered end are not in the manifest. The local log is set aside. The broker retries at
least every two minutes. A restored producer state may contain an open transaction: its outcome was decided before, and the new
leader writes the marker that was lost.

A change of durability is two entries of the cluster log. On the way to ``object`` the leader tiers everything, and takes no
records while the last piece is tiered. On the way back it waits until the replicas in sync have everything. Ended write-ahead
logs are deleted by the controller, living ones are trimmed by their owner.
"""
