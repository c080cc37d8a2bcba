"""The metadata of a cluster: the numbered log, and the cluster log and segment manifests that are built on it.

A *change of the cluster* is a pure function that takes a draft of the next image and returns records. The controller collects
changes and appends them as one entry of the cluster log. Every broker reads the entries and replaces its image.

Folders, each of which imports only from those above it:

- ``log/``: the numbered log, the primitive under every durable decision
- ``image/``: the records of the cluster log and the image of the cluster, pure; ``manifest/``: segment manifests
- ``peers/``: requests between brokers; ``replicas/``: rules for single partitions, pure
- ``changes/``: changes of the cluster, pure
- ``view/``: a broker's view of the cluster log, and its registration in it
- ``controller/``: the only writer of the cluster log
- ``membership/``: the life of one broker in the cluster

The cluster log binds a node id to a directory id. The bound directory starts at once. Another directory may start only with
``--take-over``, or if the bound broker has been silent for 30 s and does not respond at its address. The new broker binds its
directory by an append, and notifies the old one before it serves (ADR 0018).

In a cluster of several brokers a member registers, sends heartbeats, reads entries, and becomes a candidate when the controller
is gone. The controller fences brokers that it does not hear, lets preferred leaders lead again, and gives internal topics more
replicas as brokers join. Loops of a cluster at rest wait for events and deadlines; waits that need not be exact end at shared
moments.
"""
