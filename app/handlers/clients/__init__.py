"""A connection as Produce and Fetch see it, and the parts of it that both ways of a request use.

- ``client``: ``Client``; ``serving``: names the request that the loop is busy with
- ``produce_shape``, ``fetch_shape``: recognise repeated requests
- ``keyed``: look-ups of keys of HTTP requests; ``private``: private APIs that are served through a slot
- ``admission``: transactional batches; ``held_sequences``: refused sequences
"""
