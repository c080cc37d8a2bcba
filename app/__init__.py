"""Firn: a Kafka-protocol log service whose home is the object store.

Each package's ``__init__.py`` lists its files. Modules outside of packages:

- ``units``, ``errors``, ``limits``: types with units, the error tree, shared limits
- ``seams``: clock, randomness and thread pool as arguments; ``turns``: portions of long work (INV-15)
- ``metrics``, ``faults``, ``notices``, ``usage``: metrics, log lines for faults, lines on standard error, resource usage
- ``buckets``, ``addresses``: token buckets, network addresses
- ``settings``: settings of the process, from file, environment and flags
- ``priority``, ``terminating``, ``interpreter``, ``allocator``, ``commit``, ``extras``: the process itself
- ``demo``: ``firn demo``
"""

__version__ = "0.1.1"
