"""The operating system: files, page cache, clock, threads, calls to child processes.

- ``files``: ``FileSystem``, the seam and the real one; ``page_cache``: which bytes of a file are in memory
- ``rotated_file``: a log file
- ``runtime``: the real clock and threads; ``cpu_alarm``: an alarm on a thread's CPU time; ``garbage``: short garbage collections
- ``rpc``: calls between two processes; ``listeners``: processes that listen on a port; ``web``: one document from a web server
- ``span_export``: the thread that sends traces
- ``certificates``, ``pkcs12``: TLS contexts
- ``children``: child processes that are started again
- ``priority``, ``terminating``, ``interpreter``, ``allocator``: other processes, ends of processes, child interpreters,
  freed memory
- ``commit``: the commit of the repository that runs
"""
