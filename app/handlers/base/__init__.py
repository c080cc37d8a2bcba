"""Helpers that handlers share.

- ``api``: ``Api``, the row of an API; ``request``: ``Request``
- ``context``: ``Context``, the parts of the broker; ``views``: which of them each family of handlers can reach
- ``authorising``: the right that each API needs, and the operations of each type of resource
- ``portions``: long requests in portions (INV-15)
- ``partitions``: finds a partition and checks it
- ``mutations``, ``in_time``, ``topic_settings``: shared by changes of the cluster
- ``group_requests``, ``commits``: shared by requests of groups and by commits of offsets
"""
