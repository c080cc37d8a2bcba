"""Fetch.

- ``fetch``: plans a fetch, and ``ParkedFetch``; ``fetch_long``: requests of many partitions
- ``followers``: fetches of followers
"""
