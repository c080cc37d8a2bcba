"""Metrics that clients push (KIP-714), kept for ``/metrics``.

- ``otlp``: reads the points of a push, which is OpenTelemetry's protobuf. Pure.
- ``series``: the time series of all clients, bounded for each client and in sum. Pure.
- ``clients``: the known clients, the metrics wanted of each, and the times of its pushes. Pure.

``app/configs/client_metrics.py`` defines the subscriptions. ``app/handlers/apis/telemetry.py`` serves the requests.
"""
