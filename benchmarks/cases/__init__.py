"""All cases by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..harness import Bench, Case
from .append import append, append_batch
from .append_many import append_many, append_rows
from .cold import cold_scan, cold_scan_s3
from .compaction import compaction
from .consumers import coroutines, poll, position_commits
from .flight import flight_append, flight_latency, flight_scan
from .keys import scan_key
from .manifest import manifest
from .memory import memory_append, memory_scan
from .offload import memory_offload, offload, requests
from .point import open_store, point_read, read_records
from .scan import compressed_scan, warm_scan
from .streaming import streaming, streaming_latency
from .sync import group_commit, sync_append
from .tables import cold_filter, small_commits
from .transactions import transactions

ACCELERATED = "-accelerated"
"""What the name of a case ends in that is run with the accelerated append; all others are run without."""

CASES: dict[str, Callable[[Bench], Case]] = {
    "append": append,
    f"append{ACCELERATED}": append,
    "append-many": append_many,
    "append-batch": append_batch,
    "append-rows": append_rows,
    "sync-append": sync_append,
    "group-commit": group_commit,
    "transactions": transactions,
    "position-commits": position_commits,
    "coroutines": coroutines,
    "poll": poll,
    "scan-none": warm_scan,
    "scan-zstd": partial(compressed_scan, codec="zstd"),
    "scan-lz4": partial(compressed_scan, codec="lz4"),
    "scan-cold": cold_scan,
    "scan-filter": cold_filter,
    "scan-key": scan_key,
    "scan-s3": cold_scan_s3,
    "scan-s3-random": partial(cold_scan_s3, random=True),
    "offload": offload,
    "requests": requests,
    "compaction": compaction,
    "manifest": manifest,
    "small-commits": small_commits,
    "flight-append": flight_append,
    "flight-latency": flight_latency,
    "flight-scan": flight_scan,
    "point-read": point_read,
    "read-records": read_records,
    "open": open_store,
    "streaming": streaming,
    "streaming-latency": streaming_latency,
    "memory-scan": memory_scan,
    "memory-scan-cold": partial(memory_scan, cold=True),
    "memory-append": memory_append,
    "memory-offload": memory_offload,
}
