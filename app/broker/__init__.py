"""The composition root: the only place that builds clocks, sockets, stores and processes.

Nothing is imported here: ``start/process.py`` starts the store process before it imports the modules that a node needs, and
commands that only need a clock load no broker.

- ``node``: ``Node``, a broker inside one event loop
- ``last_registration``: the last broker epoch of a data directory
- ``quota_tokens``: leases of cluster-wide quotas; ``spending``: the measured bill

Folders:

- ``start/``: the process, and its child processes
- ``composing/``: the parts of a node, and the stages in which they come into being
- ``partitions/``: partitions in line with the image; ``replication/``: followers and in-sync sets
- ``write_ahead/``: object durability (ADR 0037)
- ``peers/``: calls to other brokers
- ``security/``: listeners, users, keys, the audit log; ``watching/``: health, and watches over the loop

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
