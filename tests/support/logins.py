"""The shape of a login, as a client sees it."""

from __future__ import annotations

import re
from base64 import b64decode

from app.security.scram import (
    SaltShape,
    ScramCredential,
    shape_of,
)

SALT = re.compile(rb"s=([^,]+),i=([0-9]+)")
"""In a server's first message."""


def seen_shape(salt: bytes, iterations: bytes) -> SaltShape:
    """What a server's first message shows."""
    return shape_of(ScramCredential(b64decode(salt, validate=True), b"", b"", int(iterations)))
