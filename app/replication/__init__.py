"""Partitions as this broker has them: its role in each, who leads, what counts as stored.

Between the handlers and coordinators, which ask for partitions, and ``app/hot/``, which keeps their records on the disk.
"""
