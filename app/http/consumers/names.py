"""Ids of consumer instances. Each id belongs to one process of those that share a port, and every process can say to which. Pure.

A generated id names its process. An id that a client has chosen belongs to the process that a hash of group and id names, so that
the id is unique in its group for all processes together.

Tests: ``tests/http/consumers/test_names.py``.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

NAME_CHARS_MAX: Final = 200
_NAME: Final = re.compile(r"[A-Za-z0-9._~:@+=,-]+\Z")
_GENERATED: Final = re.compile(r"rest-consumer-(\d{1,4})-[0-9a-f]{24}\Z")


def generated_id(process: int, random_hex: str) -> str:
    """An id that names its process. ``random_hex``: 24 hexadecimal digits that no other id has."""
    return f"rest-consumer-{process}-{random_hex}"


def is_name(text: str) -> bool:
    """Whether a client may choose this name: characters that need no escape in a path."""
    return len(text) <= NAME_CHARS_MAX and _NAME.match(text) is not None and text.strip(".") != ""


def owner_of(group: str, instance_id: str, processes: int) -> int:
    """The index of the process that has this instance, or would have it, among ``processes`` that share a port."""
    generated = _GENERATED.match(instance_id)
    if generated is not None and int(generated[1]) < processes:
        return int(generated[1])
    digest = blake2b(f"{len(group)}:{group}{instance_id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) % processes
