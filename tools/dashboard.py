"""Write ``infra/monitoring/dashboard.json``: the Grafana dashboard, as code.

    python tools/dashboard.py

Tests: ``tests/infra/monitoring/test_dashboard.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

TARGET: Final = Path(__file__).parents[1] / "infra" / "monitoring" / "dashboard.json"
WIDTH, HEIGHT, ACROSS = 8, 7, 3
SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
NODES: Final = 'node_id=~"$node"'


class Panel(NamedTuple):
    """A graph, or a number."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """Expression and legend of each."""
    text: str = ""
    kind: str = "timeseries"


class Row(NamedTuple):
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


def _number(title: str, query: str, text: str, unit: str = "short") -> Panel:
    return Panel(title, unit, ((query, ""),), text, "stat")


ROWS: Final = (
    Row(
        "Does it work?",
        (
            _number("Brokers down", "sum(firn_broker_up == bool 0)", "Addresses that do not respond."),
            _number("Controllers", "sum(firn_active_controller)", "One, or nothing of the cluster can change."),
            _number("Partitions without leader", "max(firn_leaderless_partitions)", "No broker leads them."),
            _number("Partitions offline", "sum(firn_offline_partitions)", "Their brokers cannot open them."),
            _number("Partitions below min.insync.replicas", "sum(firn_under_min_isr_partitions)", "acks=all is refused."),
            _number("Under-replicated partitions", "sum(firn_under_replicated_partitions)", "A replica lags."),
        ),
    ),
    Row(
        "Traffic",
        (
            Panel(
                "Bytes in and out", "Bps",
                (
                    (f"sum by (node_id) (rate(firn_bytes_in_total{{{NODES}}}[$__rate_interval]))", "in, {{node_id}}"),
                    (f"sum by (node_id) (rate(firn_bytes_out_total{{{NODES}}}[$__rate_interval]))", "out, {{node_id}}"),
                ),
            ),
            Panel(
                "Topics with most bytes in", "Bps",
                ((f"topk(10, sum by (topic) (rate(firn_topic_bytes_in_total{{{NODES}}}[$__rate_interval])))", "{{topic}}"),),
            ),
            Panel(
                "Requests", "reqps",
                ((f"topk(10, sum by (api) (rate(firn_requests_total{{{NODES}}}[$__rate_interval])))", "{{api}}"),),
            ),
            Panel(
                "Time of Produce and Fetch, p99", "s",
                tuple(
                    (
                        "histogram_quantile(0.99, sum by (node_id, le) (rate(firn_request_seconds_bucket"
                        f'{{api="{api}",{NODES}}}[$__rate_interval])))',
                        f"{api}, {{{{node_id}}}}",
                    )
                    for api in ("produce", "fetch")
                ),
                "A Fetch waits for records, so its time is high where little is written.",
            ),
            Panel(
                "Refused requests", "reqps",
                ((f"sum by (api) (rate(firn_request_errors_total{{{NODES}}}[$__rate_interval]))", "{{api}}"),),
            ),
            Panel("Connections", "short", ((f"sum by (node_id) (firn_connections{{{NODES}}})", "{{node_id}}"),)),
        ),
    ),
    Row(
        "Groups and transactions",
        (
            Panel("Lag", "short", (("topk(10, sum by (group, topic) (firn_group_lag_records))", "{{group}}, {{topic}}"),)),
            Panel("Members", "short", (("sum by (type) (firn_group_members)", "{{type}}"),)),
            Panel("Oldest open transaction", "s", (("max by (node_id) (firn_transaction_oldest_seconds)", "{{node_id}}"),)),
        ),
    ),
    Row(
        "Tier",
        (
            Panel(
                "Not in the object store yet", "bytes",
                (("topk(10, sum by (topic) (firn_tier_lag_bytes))", "{{topic}}"),),
                "The active segments are part of it.",
            ),
            Panel("Bytes in the object store", "bytes", (("topk(10, sum by (topic) (firn_tier_remote_bytes))", "{{topic}}"),)),
            Panel(
                "Uploads that failed or stalled", "short",
                (
                    (f"sum by (node_id) (increase(firn_tier_failures_total{{{NODES}}}[$__rate_interval]))", "failed, {{node_id}}"),
                    (
                        f"sum by (node_id) (increase(firn_tier_stalled_uploads_total{{{NODES}}}[$__rate_interval]))",
                        "stalled, {{node_id}}",
                    ),
                ),
            ),
            Panel(
                "Requests to the object store", "reqps",
                (
                    (
                        f"sum by (operation, outcome) (rate(firn_store_requests_total{{{NODES}}}[$__rate_interval]))",
                        "{{operation}}, {{outcome}}",
                    ),
                ),
            ),
            Panel(
                "Chunk cache", "ops",
                (
                    (f"sum(rate(firn_chunk_cache_hits_total{{{NODES}}}[$__rate_interval]))", "hits"),
                    (f"sum(rate(firn_chunk_cache_misses_total{{{NODES}}}[$__rate_interval]))", "misses"),
                ),
            ),
            Panel(
                "Write-ahead log", "bytes",
                ((f"sum by (node_id) (firn_wal_held_bytes{{{NODES}}})", "waits for the store, {{node_id}}"),),
                "Only with topics of firn.durability=object.",
            ),
            Panel(
                "Take-overs of write-ahead logs", "short",
                (
                    (
                        f"sum by (node_id) (increase(firn_wal_take_overs_total{{{NODES}}}[$__rate_interval]))",
                        "partitions, {{node_id}}",
                    ),
                    (
                        f"sum by (node_id) (increase(firn_wal_take_over_failures_total{{{NODES}}}[$__rate_interval]))",
                        "failed attempts, {{node_id}}",
                    ),
                ),
                "Partitions of firn.durability=object that a broker continued from ended write-ahead logs.",
            ),
        ),
    ),
    Row(
        "Machine and cost",
        (
            Panel(
                "Free disk", "bytes",
                (
                    (f"firn_log_dir_free_bytes{{{NODES}}}", "free, {{node_id}}"),
                    (f"firn_log_dir_free_bytes_min{{{NODES}}}", "reserve, {{node_id}}"),
                ),
            ),
            Panel(
                "Event loop stands still", "percentunit",
                ((f"sum by (node_id) (rate(firn_loop_stalled_seconds_total{{{NODES}}}[$__rate_interval]))", "{{node_id}}"),),
            ),
            Panel(
                "Dollars a month", "currencyUSD",
                (("sum by (line) (firn_cost_dollars_per_month)", "{{line}}"),),
                "A month like the last hour, at list prices.",
            ),
        ),
    ),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's model."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in ROWS:
        panels.append({"type": "row", "title": row.title, "gridPos": {"x": 0, "y": y, "w": WIDTH * ACROSS, "h": 1}})
        y += 1
        for place, panel in enumerate(row.panels):
            at = {"x": place % ACROSS * WIDTH, "y": y + place // ACROSS * HEIGHT, "w": WIDTH, "h": HEIGHT}
            panels.append(_panel(panel, at))
        y += -(-len(row.panels) // ACROSS) * HEIGHT
    for number, one in enumerate(panels, start=1):
        one["id"] = number
    return {
        "title": "Firn",
        "uid": "firn",
        "tags": ["firn"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                {
                    "name": "node", "label": "Broker", "type": "query", "datasource": SOURCE,
                    "query": "label_values(firn_active_controller, node_id)", "multi": True, "includeAll": True,
                    "allValue": ".*", "refresh": 2,
                },
            ]
        },
        "panels": panels,
    }  # fmt: skip


def _panel(panel: Panel, at: dict[str, int]) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for place, (expression, legend) in enumerate(panel.queries)
        ],
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
