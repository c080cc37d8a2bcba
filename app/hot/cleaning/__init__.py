"""Log compaction (``cleanup.policy=compact``): at least the newest record of every key stays, at its offset and in its order.

- ``selection``: which log is due, and up to which offset it may be cleaned; pure
- ``cleaner``: ``LogCleaner``, the broker's part: one log at a time, swaps, checkpoint, metrics; on the event loop
- ``work``: the seam to the code that reads and writes segments; ``job``: one round as data
- ``process``: the cleaner process, started when there is work
- ``compaction``: one round: index the new part of a log, rewrite its segments; blocks
- ``transactions``: aborted batches, and markers without their transaction; pure
- ``engine``: the interface of the inner loops; ``plain``: the engine in Python
- ``compiled``, ``kernels``, ``intrinsics``: the engine compiled by numba

A round reads the new part of a log into a map from hashed keys to their newest offsets, and rewrites the segments in groups,
oldest first. Kafka's rules decide which other records stay. Firn also keeps the last batch of each segment, so that a gap
between two segments is damage here as in any other log. Each group is swapped in before the next one is written: ``.cleaned``,
synced; ``.swap``, durable; old files away and ``.swap`` to their names, in one turn of the loop; directory synced. A kill
before ``.swap`` loses the work; after it, recovery completes the swap.

A compaction or an upload never keeps a log from being cut. A truncation, a deletion, and a change of ``cleanup.policy`` end the
compaction of that log in the same turn of the loop. A truncation also ends uploads of segments above the cut. Only a swap is
waited for, as any sync is (``app/hot/segment_holds.py``).
"""
