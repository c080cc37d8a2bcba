"""Fetch.

- ``fetch``: decides whether a consumer or a follower asks, and plans; ``fetch_long``: requests of many partitions
- ``attempts``: ``Attempt``, one look at the partitions; its kinds are in ``consumers`` and ``following``
- ``followers``: checks, positions and watches of followers
- ``parked``: ``ParkedFetch``, a request that waits; ``answers``: the response
"""
