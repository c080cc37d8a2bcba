"""Log compaction (``cleanup.policy=compact``): at least the newest record of every key stays, at its offset and in its order.

- ``selection``: which log is due, and up to which offset it may be cleaned; pure
- ``cleaner``: ``LogCleaner``, the broker's part: one log at a time, swaps, checkpoint, metrics; on the event loop
- ``work``: the seam to the code that reads and writes segments; ``job``: one round as data
- ``process``: the cleaner process, started when there is work
- ``compaction``: one round: index the new part of a log, rewrite its segments; blocks
- ``transactions``: aborted batches, and markers without their transaction; pure
- ``engine``: the interface of the inner loops; ``plain``: the engine in Python
- ``compiled``, ``kernels``, ``intrinsics``: the engine compiled by numba
"""
