"""What hypothesis draws batches from."""

from __future__ import annotations

from hypothesis import strategies as st

from app.core.units import TimestampMs
from app.records.record import NewRecord

NOW_MS = 1_700_000_000_000

field = st.none() | st.binary(max_size=80) | st.integers(0, 9000).map(lambda length: b"v" * length)
headers = st.lists(st.tuples(st.text(max_size=12), st.none() | st.binary(max_size=70)), max_size=3).map(tuple)
timestamps = st.integers(NOW_MS - 10**7, NOW_MS + 10**7).map(TimestampMs)
new_records = st.lists(st.builds(NewRecord, timestamps, field, field, headers), min_size=1, max_size=12)
