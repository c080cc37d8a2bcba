"""Logs and manifests at a start, after a loss, and for ``firn doctor``.

- ``rebuild``: compares a log with its manifest; ``refilling``: refills a log from the store
- ``unnamed``, ``soundness``: damage of a manifest; ``verify``: checks a bucket
"""
