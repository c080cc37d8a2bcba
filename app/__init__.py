"""Firn: a Kafka-protocol log service whose home is the object store.

Each package's ``__init__.py`` lists its files. Modules outside of packages:

- ``settings``: settings of the process, from file, environment and flags
- ``demo``: ``firn demo``
"""

__version__ = "0.1.1"
