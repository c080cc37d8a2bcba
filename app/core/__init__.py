"""Types and small helpers that every package may use.

- ``units``, ``errors``, ``limits``: types with units, the error tree, shared limits
- ``seams``: clock, randomness and thread pool as arguments; ``loop_time``: the clock of the running loop
- ``turns``: portions of long work (INV-15); ``wake``: callbacks and tasks that wait for one moment
- ``metrics``, ``usage``: counters, histograms and gauges; the resource usage of a process
- ``log_events``: names of lines for the operator
- ``tracing``: sampled requests and their spans
- ``faults``, ``notices``: log lines for faults, lines on standard error
- ``buckets``, ``addresses``: token buckets, network addresses; ``extras``: how to install an optional part
"""
