"""What the operating system gives: files, page cache, clock, threads, calls to child processes."""
