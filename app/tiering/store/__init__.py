"""The store process: it uploads segments, reads chunks, and knows the bytes of a segment object.

- ``segment_format``: the segment object, ``.seg``; ``discovery``: finds segments by their keys and footers alone
- ``store_work``: ``StoreWork``, uploads and chunk reads; ``store_process``: the process; ``store_proxy``: calls to it
"""
