"""Log compaction (``cleanup.policy=compact``): at least the newest record of every key stays, at its offset and in its order.

selection     which log is due, and up to where it may be cleaned                    pure
cleaner       the broker's part: one log at a time, swaps, checkpoint, metrics       event loop
work          the seam to the code that reads and writes segments; in this process         pool thread
process       the same in a process of its own, started when there is work           its own core
compaction    one job: index the new part of a log, rewrite its segments          blocking
engine        interface of the inner loops: compiled (numba) or plain
transactions  aborted batches, and markers without their transaction                 pure
swapping      file names: from .cleaned over .swap to the final ones                   blocking
"""
