"""Records for a page, a file or a stream.

- ``reading``: records for a page; ``decoding``: keys and values decoded by schemas
- ``masks``: ``Masks``, hidden fields
"""
