"""Texts and drawings of pages, pure.

- ``formats``: numbers, times and names; ``command_lines``: command lines to copy
- ``timeline``: the drawing of a partition; ``differences``: the difference of two schemas
- ``runbooks``: the blocks of a runbook
"""
