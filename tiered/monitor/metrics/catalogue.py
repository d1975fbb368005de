"""The catalogue of metrics: name, kind, labels and meaning. The page docs/metrics.md is generated from it.

Names follow the conventions of Prometheus: base units (seconds, bytes), and ``_total`` for counters. Few metrics have
the partition as a label, so that a thousand partitions do not make a hundred thousand series.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...tiering.pass_history import KINDS, OUTCOMES

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes
    ----------
    name
        The exported name; that of a counter ends in ``_total``.
    kind
        ``counter``, ``gauge`` or ``histogram``.
    help
        The HELP text.
    labels
        Names of the labels, in order.
    group
        The heading of its section in the documentation.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    group: str = ""


def _group(group: str, *metrics: tuple[str, str, str] | tuple[str, str, str, str]) -> tuple[Metric, ...]:
    return tuple(
        Metric(f"tiered_{name}", kind, text, tuple("".join(labels).split()), group)
        for name, kind, text, *labels in metrics
    )


_STORE = _group(
    "Store",
    ("info", GAUGE, "Always 1; the labels are the release and the open store.", "version store"),
    ("partitions", GAUGE, "Partitions of the topic.", "topic"),
    (
        "tier_bytes",
        GAUGE,
        "Bytes in each tier; those of the cold tier as this process last read them.",
        "tier topic",
    ),
    ("tier_records", GAUGE, "Records in each tier; a record can be in several tiers.", "tier topic"),
    ("tier_segments", GAUGE, "Hot blocks, local segments and cold objects.", "tier topic"),
    ("disk_free_bytes", GAUGE, "Free bytes of the file system that holds the local store."),
    ("disk_size_bytes", GAUGE, "Size of the file system that holds the local store."),
    ("unreadable_partitions", GAUGE, "Partitions whose local files cannot be read.", "topic"),
)
_WRITING = _group(
    "Appending",
    ("appended_records_total", COUNTER, "Records written to segments.", "topic partition"),
    ("appended_bytes_total", COUNTER, "Bytes of the blocks written to segments.", "topic partition"),
    ("flush_seconds", HISTOGRAM, "Duration of group commits: pending records written, and synced."),
    ("fsync_seconds", HISTOGRAM, "Duration of the syncs of active segments."),
    ("writers_failed", GAUGE, "Writers that refuse appends, by the error that they raise.", "topic error"),
    ("fenced_partitions", GAUGE, "Partitions whose log another host owns; nothing is published.", "topic"),
)
_READING = _group(
    "Reading",
    ("read_splits_total", COUNTER, "Splits read, by the tier that they were read from.", "tier"),
    ("cache_hits_total", COUNTER, "Ranges of cold objects that a cache had.", "cache"),
    ("cache_misses_total", COUNTER, "Ranges of cold objects that were fetched."),
    ("cache_hit_bytes_total", COUNTER, "Bytes that a cache had."),
    ("cache_miss_bytes_total", COUNTER, "Bytes that were fetched."),
    ("cache_evictions_total", COUNTER, "Files that the disk cache removed to make room."),
    ("cache_damaged_total", COUNTER, "Cached ranges that failed their checksum and were fetched again."),
)
_LAG = _group(
    "Copying to the bucket",
    ("copy_lag_records", GAUGE, "Durable records that are not in the bucket.", "topic"),
    ("copy_lag_bytes", GAUGE, "Bytes of segments with durable records that are not in the bucket.", "topic"),
    ("copy_lag_segments", GAUGE, "Segments with durable records that are not in the bucket.", "topic"),
    ("copy_lag_seconds", GAUGE, "Age of the topic's oldest durable record not in the bucket.", "topic"),
    ("oldest_unpublished_seconds", GAUGE, "Age of the store's oldest durable record not in the bucket."),
    (
        "publication_unknown_partitions",
        GAUGE,
        "Partitions with records whose published end this process does not know yet.",
        "topic",
    ),
    ("dirty_offsets", GAUGE, "Offsets in the bucket that no compaction has gone through yet.", "topic"),
)
_CONSUMERS = _group(
    "Consumers",
    (
        "consumer_lag_records",
        GAUGE,
        "Durable records that the consumer has not read, by its durable position.",
        "consumer topic partition",
    ),
    (
        "consumer_lag_seconds",
        GAUGE,
        "Age of the first of these records by its timestamp; 0 if there is none.",
        "consumer topic partition",
    ),
    (
        "consumer_positions_unknown",
        GAUGE,
        "1 while the positions cannot be read from this disk, so that no lag is known, else 0.",
    ),
)
_ERASURES = _group(
    "Erasures",
    ("erasures_open", GAUGE, "Erasures that are not done."),
    (
        "erasure_deadline_seconds",
        GAUGE,
        "Seconds until the first deadline of an open erasure, negative after it; infinite without one.",
    ),
)
_TABLES = _group(
    "Live tables",
    (
        "table_lag_records",
        GAUGE,
        "Durable records that the table does not have; known once this process has published it.",
        "topic",
    ),
    (
        "table_lag_seconds",
        GAUGE,
        "Age of the first of these records by its timestamp; 0 if there is none.",
        "topic",
    ),
    ("table_failing", GAUGE, "1 while the last publication of the table failed, else 0.", "topic"),
    (
        "table_kept_objects",
        GAUGE,
        "Objects that the last sweep left for the table alone: it was not published for longer than the grace.",
        "topic",
    ),
)
_COLD = _group(
    "Bucket",
    ("cold_requests_total", COUNTER, "Requests to the bucket, repetitions included.", "operation"),
    (
        "cold_errors_total",
        COUNTER,
        "Requests that failed, by the error code of S3 or the SDK; answers such as NoSuchKey are included.",
        "operation kind",
    ),
    ("cold_throttles_total", COUNTER, "Requests that the bucket refused because there were too many."),
    ("cold_sent_bytes_total", COUNTER, "Bytes of bodies sent to the bucket, repetitions included."),
    ("cold_received_bytes_total", COUNTER, "Bytes of objects received from the bucket."),
    ("cold_away", GAUGE, "1 while the bucket does not answer passes, else 0."),
    (
        "cost_dollars_estimate_total",
        COUNTER,
        "Estimated cost of this process's requests and retrievals in US dollars, by public list prices.",
    ),
    (
        "storage_dollars_per_month_estimate",
        GAUGE,
        "Estimated cost of storing the bucket's data for a month in US dollars, by public list prices.",
    ),
)
_PASSES = _group(
    "Passes",
    ("pass_seconds", HISTOGRAM, f"Duration of passes ({' and '.join(KINDS)}).", "pass"),
    ("pass_failures_total", COUNTER, "Passes with an error.", "pass"),
    (
        "pass_last_success_timestamp_seconds",
        GAUGE,
        "Time at which the last pass without an error ended; 0 before.",
        "pass",
    ),
    ("pass_running", GAUGE, "1 while the pass runs, else 0.", "pass"),
    ("pass_threads_gone", GAUGE, "Threads of passes that ended although they should run."),
    ("pass_waiting", GAUGE, "Topics or partitions that failed last and wait for their next try.", "pass"),
    (
        "passes_in_vain",
        GAUGE,
        "Number of the last consecutive passes that could not begin, or that another process kept from working.",
        "pass",
    ),
    ("actions_total", COUNTER, f"Actions of passes by outcome: {', '.join(OUTCOMES)}.", "action outcome"),
    ("action_bytes_total", COUNTER, "Bytes that completed actions moved or freed.", "action"),
    ("paused_topics", GAUGE, "Topics that are paused until an operator resumes them."),
)
_SCRUB = _group(
    "Scrub",
    ("scrub_damaged_objects", GAUGE, "Published objects that a scrub found missing or damaged.", "topic"),
    (
        "scrub_last_completed_timestamp_seconds",
        GAUGE,
        "Time at which a scrub had last checked all objects of the topic; 0 before the first time.",
        "topic",
    ),
)

METRICS = (*_STORE, *_WRITING, *_READING, *_LAG, *_CONSUMERS, *_TABLES, *_ERASURES, *_COLD, *_PASSES, *_SCRUB)
