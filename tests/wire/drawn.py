"""Strategies of parts of messages."""

from __future__ import annotations

from hypothesis import strategies as st

from app.wire.endpoints import NodeEndpoint

int64s = st.integers(-(1 << 63), (1 << 63) - 1)
names = st.text(max_size=12) | st.sampled_from(("x" * 125, "y" * 126, "z" * 127, "w" * 249, "v" * 250))
nodes = st.builds(
    NodeEndpoint, st.integers(0, 9), st.text(max_size=9), st.integers(0, 65_535), st.none() | st.text(max_size=3)
)
