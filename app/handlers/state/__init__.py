"""State that all requests of a broker share. ``Context`` holds it.

- ``fetch_sessions``: sessions (KIP-227); ``fetch_fan_out``: one response for many consumers
- ``parked_followers``: waiting fetches of followers
- ``metadata_cache``: encoded Metadata; ``producer_id_block``: producer ids at hand
- ``preparations``: memory for batches that need work
- ``acknowledging``: holds responses back after a possible replacement; ``draining``: a drain
- ``metrics``, ``zones``: counters; ``telemetry``: metrics that clients push
"""
