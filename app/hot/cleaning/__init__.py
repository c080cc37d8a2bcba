"""Log compaction (``cleanup.policy=compact``): of every key at least the newest record stays, at its offset, in its order.

selection     which log is due, and up to where it may be cleaned                    pure
cleaner       the broker's side: one log at a time, swaps, checkpoint, metrics       event loop
work          the seam to whoever reads and writes segments; in this process         pool thread
process       the same in a process of its own, started when there is work           its own core
compaction    one job: index the new part of a log, write its segments anew          blocking
engine        what a job asks of its inner loops: compiled (numba) or plain
transactions  aborted batches, and markers that have outlived theirs                 pure
swapping      names of files from .cleaned over .swap to their own                   blocking
"""
