"""The output of an audit: a table with a row for each segment, and a page for people, to read and to sign.

The page is one HTML file that is complete in itself, without scripts. It carries the seal, the SHA-256 of the table: a reader
of the page can tell whether a table is the one that was signed. Strings from the bucket are escaped: they are shown as text and
never as markup.
"""

from __future__ import annotations

import hashlib
import shlex
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app import __version__
from app.tiering.repair.verify import Finding, FindingKind
from pyspark_firn.jobs.inspection import Inspection, SegmentFacts
from pyspark_firn.jobs.targets import Folder, HeldFile, sweep_folder, writing

TABLE: Final = "segments.parquet"
PAGE: Final = "report.html"

_ARROW: Final = {str: pa.string(), int: pa.int64(), bool: pa.bool_()}
_NO_FACTS: Final = SegmentFacts(topic_id="", partition=0, segment_id="", object_key="", base_offset=0, end_offset=0)


def check_folder(folder: Path) -> None:
    """Make the folder of a report, and see whether anything can be written there. Raises: StorageUnavailable."""
    with writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    Folder(folder).create(TABLE).discard()


def write_report(found: Inspection, folder: Path, *, made: datetime) -> tuple[Path, Path]:
    """``segments.parquet`` and ``report.html`` in ``folder``; each shows when it is whole.

    Answers where they are. Raises: StorageUnavailable; then the folder is as it was, but for a table without its page.
    """
    check_folder(folder)
    for name in (TABLE, PAGE):
        sweep_folder(folder, name)
    rows = [_facts_row(facts) for facts in found.facts]
    schema = pa.schema([(name, _ARROW[type(value)]) for name, value in _facts_row(_NO_FACTS).items()])
    begun: list[HeldFile] = []
    try:
        for name in (TABLE, PAGE):
            begun.append(Folder(folder).create(name))
        table, page = begun
        with writing(table.name):
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), table.sink, compression="zstd")
            with open(table.sink, "rb") as file:
                seal = hashlib.file_digest(file, "sha256").hexdigest()
        with writing(page.name):
            Path(page.sink).write_text(html_page(found, seal, made), encoding="utf-8", errors="backslashreplace")
        table.publish()
        page.publish()
    except BaseException:
        for one in begun:
            one.discard()
        raise
    return folder / TABLE, folder / PAGE


# --- the page -------------------------------------------------------------------------------------------------------

MENDS: Final[Mapping[FindingKind, str]] = {
    FindingKind.MANIFEST_UNREADABLE: "Put back what was under this prefix: older versions, or a copy of the bucket."
    " Until then none of the partition's history can be read, and none of it was proven here.",
    FindingKind.MANIFEST_MISSING: "Do this before a broker serves the partition again.",
    FindingKind.ENTRIES_LOST: "Put back what was under this prefix, or take the segments in with `firn tier adopt`. A partition"
    " that is offline for it is led again after that; a broker that still has the records copies them again by itself.",
    FindingKind.FOREIGN_KEY: "No broker reads or deletes the object under that key. Find out who asked for it, and put back"
    " what was under this prefix before.",
    FindingKind.OBJECT_MISSING: "Put the object back under this key: an older version, or a copy. Its records are lost otherwise.",
    FindingKind.OBJECT_DAMAGED: "Put an undamaged version of the object in its place: an older version, or a copy."
    " Readers of these records get an error until then, never a wrong record.",
    FindingKind.RECORDS_UNREADABLE: "The producer sent the batch so, and nothing brings its records back. Let consumers go on"
    " behind it, or delete the records up to it.",
    FindingKind.OFFSET_GAP: "Put back what the manifest was before it lost the entry: older versions, or a copy of the bucket.",
    FindingKind.OFFSET_OVERLAP: "No broker writes this. Find out who else has written below this prefix,"
    " and put back what was there.",
    FindingKind.ORPHAN_OBJECT: "Nothing needs to be done: a broker that serves the partition removes it.",
    FindingKind.ORPHAN_UPLOAD: "Nothing needs to be done: a broker that serves the partition aborts it.",
    FindingKind.FOREIGN_OBJECT: "Firn never touches it. Remove it if nobody else needs it.",
}
"""The repair for each kind of finding."""

_STYLE: Final = """
:root {
  color-scheme: light dark; --ground: #fff; --ink: #1c2126; --quiet: #5c6670; --line: #d9dee3; --panel: #f4f6f8;
  --good: #17693a; --good-ground: #e5f4ea; --bad: #a3211a; --bad-ground: #fdeae8; --waste: #7a5300;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14181c; --ink: #e4e8ec; --quiet: #98a3ad; --line: #333b43; --panel: #1d2329;
    --good: #7fd6a0; --good-ground: #16301f; --bad: #ff9d94; --bad-ground: #3b1a18; --waste: #e2b557;
  }
}
@media print {
  :root {
    color-scheme: light; --ground: #fff; --ink: #000; --quiet: #444; --line: #bbb; --panel: #fff;
    --good: #17693a; --good-ground: #fff; --bad: #a3211a; --bad-ground: #fff; --waste: #7a5300;
  }
}
* { box-sizing: border-box; }
body {
  background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere;
  max-width: 64rem; margin: 0 auto; padding: 2rem 1rem 4rem;
}
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
h3 code { font-weight: 400; }
p { margin: .4rem 0; max-width: 46rem; }
code, pre { font: .875em/1.5 ui-monospace, monospace; }
pre { background: var(--panel); border-radius: .4rem; padding: .6rem .8rem; white-space: pre-wrap; }
.quiet { color: var(--quiet); }
.verdict { border-left: .4rem solid; border-radius: .4rem; padding: .9rem 1.1rem; margin: 1.5rem 0; }
.verdict strong { display: block; font-size: 1.35rem; }
.verdict p { color: var(--ink); }
.sound { color: var(--good); background: var(--good-ground); }
.damaged { color: var(--bad); background: var(--bad-ground); }
.totals { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 0; }
.totals div { background: var(--panel); border-radius: .4rem; padding: .6rem .8rem; }
.totals dt { color: var(--quiet); font-size: .85rem; }
.totals dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th { color: var(--quiet); font-weight: 600; text-align: left; vertical-align: bottom; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .75rem .35rem 0; }
td { white-space: nowrap; }
td:first-child { white-space: normal; }
.number { text-align: right; }
tr.damage td { color: var(--bad); font-weight: 600; }
.finding {
  border: 1px solid var(--line); border-left: .4rem solid var(--waste); border-radius: .4rem;
  padding: .6rem .9rem; margin: .6rem 0;
}
.finding strong { color: var(--waste); }
.finding.damage { border-left-color: var(--bad); }
.finding.damage strong { color: var(--bad); }
.sign {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 3rem 1.5rem; padding-top: 2.5rem;
}
.sign div { border-top: 1px solid var(--ink); padding-top: .25rem; color: var(--quiet); font-size: .85rem; }
@media screen and (max-width: 52rem) {
  thead { display: none; }
  tr { display: block; border: 1px solid var(--line); border-radius: .4rem; padding: .4rem .8rem; margin: .6rem 0; }
  td { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: .1rem 0; text-align: right; }
  td::before { content: attr(data-label); color: var(--quiet); font-weight: 400; text-align: left; flex: none; }
}
@media print {
  body { font-size: 10pt; max-width: none; padding: 0; }
  table { font-size: 8.5pt; }
  pre, .totals div { border: 1px solid var(--line); }
  tr, .finding, .sign, .verdict, .totals div { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""The content security policy: browsers load and run nothing."""
_COLUMNS: Final = ("Partition", "Offsets", "Segments", "Records", "Bytes of records", "First time", "Last time")
_NUMBERS: Final = frozenset({"Segments", "Records", "Bytes of records"})


def _facts_row(facts: SegmentFacts) -> dict[str, Any]:
    """The table's row of a segment: everything except unreadable batches, which an audit does not look for."""
    row = asdict(facts)
    del row["unreadable"]
    return row


def html_page(found: Inspection, seal: str, made: datetime) -> str:
    """The page about ``found``, complete in itself; ``seal``: SHA-256 of its table, in hexadecimal digits."""
    title = f"Audit of {found.store}"
    return "\n".join(
        (
            "<!doctype html>",
            "<html lang=en><head><meta charset=utf-8>",
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name=viewport content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            f"<p class=quiet>Cluster <code>{escape(found.cluster_id)}</code> · {_scope(found)} ·"
            f" {made.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC · Firn {escape(__version__)}</p>",
            *_verdict(found),
            *_totals(found),
            "<h2>Findings</h2>",
            *_findings(found),
            "<h2>Topics</h2>",
            *_topics(found),
            *_seal(found, seal),
            "</body></html>\n",
        )
    )


def _scope(found: Inspection) -> str:
    return f"only topics {escape(', '.join(sorted(found.topics)))}" if found.topics else "the whole bucket"


def _verdict(found: Inspection) -> Iterator[str]:
    damages = sum(finding.is_damage for finding in found.findings)
    if not damages:
        yield "<div class='verdict sound'><strong>✓ Sound</strong>"
        yield "<p>Every segment that the manifests name was read whole. Every checksum, count, offset and time was computed anew"
        yield " and is what the manifests say, and the segments of each partition join, with no gap and no overlap.</p></div>"
        return
    unproven = sum(bool(facts.problem) for facts in found.facts)
    yield f"<div class='verdict damaged'><strong>✗ Damaged: {_count(damages, 'finding')} to mend</strong>"
    yield f"<p>{unproven:,} of {_count(len(found.facts), 'segment')} could not be proven. Everything else was read whole, and every"
    yield " checksum, count, offset and time of it is what the manifests say. Sums below are of what was proven.</p></div>"


def _totals(found: Inspection) -> Iterator[str]:
    proven = [facts for facts in found.facts if not facts.problem]
    yield "<dl class=totals>"
    for name, value in (
        ("Partitions", f"{found.partitions:,}"),
        ("Segments", f"{len(found.facts):,}"),
        ("Records", f"{sum(facts.records for facts in proven):,}"),
        ("Bytes of records", f"{sum(facts.raw_bytes for facts in proven):,}"),
        ("Bytes in the bucket", f"{sum(facts.object_bytes for facts in proven):,}"),
    ):
        yield f"<div><dt>{name}</dt><dd>{value}</dd></div>"
    yield "</dl>"
    if found.expired:
        were = "was" if found.expired == 1 else "were"
        yield f"<p class=quiet>{_count(found.expired, 'more segment')} {were} deleted or replaced while this ran.</p>"


def _findings(found: Inspection) -> Iterator[str]:
    """Damage first."""
    if not found.findings:
        yield "<p>None.</p>"
    for finding in sorted(found.findings, key=lambda one: not one.is_damage):
        yield f"<div class='finding{' damage' if finding.is_damage else ''}'>"
        yield f"<strong>{escape(finding.kind.value.capitalize())}</strong>{_whose(found, finding)}"
        yield f"{'' if finding.is_damage else ' <span class=quiet>takes room, no record is in danger</span>'}"
        message = finding.message.removeprefix(f"{finding.object_key}: ")
        yield f"<p>{escape(message)}</p><p><code>{escape(finding.object_key)}</code></p>"
        yield f"<p><em>Mend:</em> {escape(MENDS[finding.kind])}</p></div>"


def _whose(found: Inspection, finding: Finding) -> str:
    if finding.partition is None:
        return ""
    topic_id, partition = finding.partition
    return f" in <code>{escape(found.names.get(topic_id, str(topic_id)))}-{partition}</code>"


def _topics(found: Inspection) -> Iterator[str]:
    by_topic: dict[tuple[str, str], dict[int, list[SegmentFacts]]] = {}
    for facts in found.facts:
        by_topic.setdefault((facts.topic, facts.topic_id), {}).setdefault(facts.partition, []).append(facts)
    if not by_topic:
        yield "<p>No segments.</p>"
    for (topic, topic_id), partitions in sorted(by_topic.items()):
        yield f"<h3>{escape(topic) or 'A deleted topic'} <code class=quiet>{escape(topic_id)}</code></h3><table><thead><tr>"
        yield from (f"<th{_aligned(name)}>{name}</th>" for name in _COLUMNS)
        yield "</tr></thead><tbody>"
        for partition, segments in sorted(partitions.items()):
            yield from _row(found.names.get(uuid.UUID(topic_id), topic_id), partition, segments)
        yield "</tbody></table>"


def _row(topic: str, partition: int, segments: Sequence[SegmentFacts]) -> Iterator[str]:
    proven = [facts for facts in segments if not facts.problem]
    is_damaged = len(proven) < len(segments)
    cells = (
        f"{escape(topic)}-{partition}",
        f"[{segments[0].base_offset:,}, {segments[-1].end_offset:,})",
        f"{len(proven):,} of {len(segments):,}" if is_damaged else f"{len(segments):,}",
        f"{sum(facts.records for facts in proven):,}",
        f"{sum(facts.raw_bytes for facts in proven):,}",
        _time(min((facts.min_timestamp for facts in proven if facts.min_timestamp >= 0), default=-1)),
        _time(max((facts.max_timestamp for facts in proven), default=-1)),
    )
    yield "<tr class=damage>" if is_damaged else "<tr>"
    for name, cell in zip(_COLUMNS, cells, strict=True):
        yield f'<td{_aligned(name)} data-label="{name}">{cell}</td>'
    yield "</tr>"


def _seal(found: Inspection, seal: str) -> Iterator[str]:
    again = ["firn", "job", "audit", "--store", found.store, "--to", "again"]
    for topic in found.topics:
        again += ["--topic", topic]
    yield "<h2>Seal</h2>"
    yield f"<p>This page is about the table <code>{TABLE}</code> beside it, a row for each segment, with this SHA-256:</p>"
    yield f"<pre>{seal}</pre>"
    yield f"<p>To check that a table is this one: <code>sha256sum {TABLE}</code>. Its column <code>sha256</code> is of each"
    yield " segment's records as they are in the log, however they are stored. To check the bucket against it, audit again and"
    yield " compare that column:</p>"
    yield f"<pre>{escape(shlex.join(again))}</pre>"
    yield "<h2>Signed off</h2><div class=sign><div>Name</div><div>Role</div><div>Place and date</div><div>Signature</div></div>"


def _aligned(column: str) -> str:
    return " class=number" if column in _NUMBERS else ""


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _time(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return "–"
    # Python's own dates end with the year 9999.
    return str(np.datetime_as_string(np.datetime64(timestamp_ms, "ms"), unit="s")).replace("T", " ")
