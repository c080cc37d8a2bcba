"""The object store: the seam ``ObjectStore`` and its adapters.

- ``api``: ``ObjectStore``; ``keys``: allowed keys; ``location``: store addresses; ``opening``: opens the store of an address
- ``directory``, ``directory_work``: a directory; ``memory``: in memory, with faults, for tests
- ``s3``, ``s3_models``, ``s3_short_cut``: S3
- ``proxy``: a store in another process; ``split``: two stores as one; ``metered``: counts requests
- ``noting``, ``traced``: notes of single requests, for traces
- ``health``: whether a store responds
- ``check``, ``bucket_rules``: whether Firn can use a store
"""
