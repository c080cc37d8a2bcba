"""The parts of a node, and the stages in which they come into being.

Each stage is a frozen record of parts. No field of a record is filled in later, so a part that needs another one comes in a later
stage. The stages, in their order:

- ``local_parts``: ``LocalParts``, made without I/O, then the claimed data directory
- ``cluster_parts``: ``ClusterParts``, the broker's membership and its partitions, made before the cluster log is read
- ``serving_parts``: ``ServingParts``, the coordinators, the handlers' context and the server, made when the logs are open
- ``several_parts``: ``SeveralParts``, the parts of one of several brokers that follow leaders

Beside them:

- ``stages``: ``Stops``, what has begun and how it ends; ``Background``, the parts that run beside the requests
- ``node_seams``: ``NodeSeams``, the implementations of the seams
- ``listening``: the bound addresses; ``following_settings``: what changes when the image changes
- ``object_journal``: the write-ahead log of this broker, made when it is needed
- ``late_parts``: parts whose modules are imported after the start, or only if the settings want them
"""
