"""Produce.

- ``produce``: from the frame to the log
- ``gathering``: appends several requests by one write; ``committing``: requests that wait for replicas
"""
