"""The maxima that several parts keep to, each with its reason (INV-7); those of one part alone stand beside the bounded object.

A limit here guards against a peer, a disk or a bucket; a limit that operators may want to change is a setting instead
(``app/configs/``). Sizes are in bytes, times in milliseconds, everything else is a count.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# --- the wire -------------------------------------------------------------------------------------------------------

REQUEST_BYTES_MAX: Final = 100 * MIB
"""Largest request frame: Kafka's default of ``socket.request.max.bytes``."""

ARRAY_ELEMENTS_MAX: Final = 1_000_000
"""Elements that any one array of a request may claim. Kafka 4.4 draws the same line before it allocates."""

MESSAGE_ELEMENTS_MAX: Final = 1_000_000
"""Array elements of one message, nested ones included. An element of a few bytes becomes an object of a few hundred, so
that without this a frame of ``REQUEST_BYTES_MAX`` could unfold to gigabytes."""

REQUEST_ELEMENTS_MAX: Final = 50_000
"""As ``MESSAGE_ELEMENTS_MAX``, of a request. A Fetch of 10,000 partitions has 11,000 at most, a reassignment of 10,000 partitions
to three replicas 41,000. Requests of clients have further bounds where they cost more than their bytes."""

RESPONSE_BYTES_MAX: Final = 100 * MIB
"""Longest response but of Fetch, which has a limit of its own: the response to a request of many names. Kafka's clients take no
longer frame by default."""

TAGGED_FIELDS_MAX: Final = 10_000
"""Tagged fields in one section, known or not. Kafka 4.4 draws the same line."""

CLIENT_ID_BYTES_MAX: Final = 32_767
"""A client id is a STRING of the request header, whose length is an int16."""

SEGMENT_BYTES_MIN: Final = 1024 * 1024
"""Least segment.bytes of a topic, as in Apache Kafka."""
PARTITIONS_PER_TOPIC_MAX: Final = 10_000
"""So that a topic is made by one entry of the cluster log: 10,000 records of about 100 bytes."""
PARTITIONS_MADE_MAX: Final = 10_000
"""Partitions that one CreateTopics or CreatePartitions makes, in all of its topics. Kafka draws the same line."""
SUBSCRIBED_TOPICS_MAX: Final = 30_000
"""Topics to which the members of one group subscribe by name, in all of their different lists."""
SUBSCRIBED_NAMES_MAX: Final = 10_000
"""Topics to which one member subscribes by name."""
TOPIC_NAME_CHARS_MAX: Final = 249
"""Kafka's limit: the directory name ``<topic>-<partition>`` must fit in 255 bytes."""

# --- records --------------------------------------------------------------------------------------------------------

BATCH_OVERHEAD_BYTES: Final = 61
"""Size of a v2 record batch header, hence of the smallest batch."""

DECOMPRESSED_BATCH_BYTES_MAX: Final = 256 * MIB
"""Raw bytes that one compressed batch may unfold to wherever a stored batch is read; beyond it the batch counts as damaged. What a
producer may send to a topic that looks into its batches is bounded by ``firn.decompressed.batch.bytes.max``, which is lower."""

RECORD_HEADERS_MAX: Final = 100_000
"""Headers of a single record."""

# --- groups ---------------------------------------------------------------------------------------------------------

GROUP_PENDING_MEMBERS_MAX: Final = 10_000
"""Member ids of one classic group that were given out and not joined with yet: asking for one costs a client nothing."""

OFFSETS_PER_COMMIT_MAX: Final = 20_000
"""Offsets in one OffsetCommit or TxnOffsetCommit."""

# --- numbered logs and segments -------------------------------------------------------------------------------------

LOG_ENTRY_BYTES_MAX: Final = 8 * MIB
"""Largest entry of a numbered log; a larger change is split into several entries."""

SEGMENT_FOOTER_BYTES_MAX: Final = 64 * MIB
"""Largest footer of a segment object: 2 GiB in chunks of 4 MiB need under 64 KiB, the rest is producer state."""

WAL_BYTES_MAX: Final = 64 * MIB
"""Most of ``wal.bytes``: with a last batch as long as a request, and a footer, the object is below ``WAL_OBJECT_BYTES_MAX``."""
WAL_OBJECT_BYTES_MAX: Final = 256 * MIB
"""Largest object of a write-ahead log: one of the longest batches, its footer, and room for a larger setting than the default."""

WAL_OBJECTS_MAX: Final = 4096
"""With more objects in a write-ahead log, partitions are tiered as if its bytes were too many: a take-over reads all footers."""
WAL_FOOTER_BYTES_MAX: Final = 64 * MIB
"""Largest footer of such an object. 8 MiB of the shortest batches need less than 8 MiB; the rest is producer state."""

WAL_STATE_BYTES_MAX: Final = 32 * MIB
"""Producers of one partition in such a footer: those with open transactions are never left out, and 700,000 are too many."""

CHUNK_BYTES_MAX: Final = 128 * MIB
"""Largest raw chunk: a chunk holds whole batches, so one batch of ``REQUEST_BYTES_MAX`` must fit."""

# --- groups ---------------------------------------------------------------------------------------------------------

REGEX_BYTES_MAX: Final = 4 * KIB
"""Longest regular expression of a subscription. Kafka takes any that fits in a STRING; compiling one that long costs 10 ms."""

SHARE_MEMBER_ID_CHARS_MAX: Final = 36
"""Longest member id of a share group, as in Kafka (KIP-932): the length of a UUID. Consumer groups have no such limit."""

REGEX_PROGRAM_SIZE_MAX: Final = 10_000
"""Instructions of a compiled regular expression: matching is linear in them, and counted repetitions multiply them."""

REGEX_CACHE_MAX: Final = 256
"""Compiled regular expressions that are kept; each takes up to a megabyte while it matches."""

LOG_CLEANER_THREADS_MAX: Final = 64
"""Logs compacted at the same time: each takes a process of some 70 MiB beside its map."""

SHARE_FETCH_WAIT_MS_MAX: Final = 60_000
"""Longest that a ShareFetch waits for records: it is a task, which outlives its connection. Kafka's client asks for 500."""

ACLS_MAX: Final = 100_000
"""Access control lists of a cluster. Each takes some 500 bytes of each broker's memory."""

# --- HTTP -----------------------------------------------------------------------------------------------------------

HTTP_CONNECTIONS_MAX: Final = 1000
"""At a time, by default: more than proxies and scrapers keep; each costs the HTTP process a descriptor and some KiB."""
HTTP_HEADER_TIMEOUT_MS: Final = 10_000
"""By default: far more than any client needs from its connection to the end of its headers."""
HTTP_BODY_TIMEOUT_MS: Final = 60_000
HTTP_INSTANCE_TIMEOUT_MS: Final = 300_000
"""By default: long enough for a sender that waits for its own source, short enough to get a lost one's connection back."""
HTTP_PROCESSES_MAX: Final = 64
"""Of one port."""
