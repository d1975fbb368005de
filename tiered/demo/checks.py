"""The checks of the demo: the tiers of the data, and reads across the tiers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..base.units import approximate_size
from ..reader.scan import Scan, TierShare
from ..store.interface.store import Store
from ..store.interface.topic import Topic
from .flights import KNOWN_ANSWERS, ORIGINS, ROW_COUNT, TIMESTAMP, answers
from .stage import Stage

_TIERS = {"hot": "memory", "warm": "segment files", "cold": "Parquet in the bucket"}
# The number of records of the oldest and of the newest tier in a range that spans all tiers.
_OVERLAP = 5_000


def print_where(stage: Stage, store: Store, topics: Iterable[str]) -> None:
    """Print records and bytes by tier; a record in several tiers counts for the one that a scan reads."""
    stage.section("Where everything lies")
    rows, bold = [], []
    for name in topics:
        shares = store.topic(name).scan().explain().tiers
        total = sum(share.records for share in shares)
        rows += [_row(name if share is shares[0] else "", share, total) for share in shares]
        bold.append(len(rows))
        size = approximate_size(sum(share.bytes for share in shares))
        rows.append(("", "all", "", f"{total:,}", "", size))
    stage.table(("topic", "tier", "", ">records", ">share", ">bytes"), rows, bold)


def _row(name: str, share: TierShare, total: int) -> tuple[str, ...]:
    part = f"{100 * share.records / max(1, total):.0f}%"
    return name, share.tier, _TIERS[share.tier], f"{share.records:,}", part, approximate_size(share.bytes)


def check_across_tiers(stage: Stage, typed: Topic, records: Topic, flights: pa.Table) -> None:
    """Read ranges that span all three tiers, and all records, and compare them with the input."""
    stage.section("One reader across the tiers, in Python")
    _check_typed(stage, typed, flights)
    _check_records(stage, records, flights)
    with stage.step("scan", "everything, two columns"):
        table = typed.scan(columns=["offset", "carrier", "dep_delay"]).to_arrow()
    stage.check(
        table.num_rows == ROW_COUNT and table.column("offset").to_pylist() == list(range(ROW_COUNT)),
        f"{ROW_COUNT:,} rows, each offset once and in order",
    )
    by_carrier = answers(table)
    for carrier, known in KNOWN_ANSWERS.items():
        stage.check(
            known.agrees(by_carrier.get(carrier)),
            f"{carrier}: {known.departures:,} departures, mean delay {known.mean_delay:.4f} minutes, as is known",
        )


def spanning_scan(topic: Topic, partition: int) -> Scan:
    """Return a scan of a partition from the end of its cold records to the beginning of its hot ones."""
    splits = topic.scan(partition).splits()
    cold_end = max((item.end_offset for item in splits if item.tier == "cold"), default=0)
    hot_start = min((item.start_offset for item in splits if item.tier == "hot"), default=0)
    return topic.scan(partition, start_offset=max(0, cold_end - _OVERLAP), end_offset=hot_start + _OVERLAP)


def _check_typed(stage: Stage, topic: Topic, flights: pa.Table) -> None:
    scan = spanning_scan(topic, 0)
    with stage.step("scan", "flights, from the last cold rows to the first hot ones") as step:
        table = scan.to_arrow()
        step.text = f"flights, {_share_text(scan)}"
    first, last = _bounds(table)
    own = table.select(topic.schema.names)
    stage.check(
        _spans(scan) and own.equals(flights.slice(first, last - first).cast(own.schema)),
        f"flights: rows {first:,} to {last:,} come from memory, disk and bucket, and equal the input",
    )


def _check_records(stage: Stage, topic: Topic, flights: pa.Table) -> None:
    for partition, origin in enumerate(ORIGINS):
        scan = spanning_scan(topic, partition)
        with stage.step("scan") as step:
            table = scan.to_arrow()
            step.text = f"departures, {origin}: {_share_text(scan)}"
        first, last = _bounds(table)
        expected = flights.filter(pc.equal(flights.column("origin"), origin)).slice(first, last - first)
        stage.check(
            _spans(scan) and _as_flights(table, flights.schema).equals(expected),
            f"departures, {origin}: records {first:,} to {last:,} likewise",
        )


def _as_flights(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return flights from JSON records; carrier and time come from key and timestamp instead of the value."""
    values = [json.loads(value) for value in table.column("value").to_pylist()]
    flights = pa.Table.from_pylist(
        [{name: row[name] for name in schema.names if name != TIMESTAMP} for row in values],
        schema=pa.schema([field for field in schema if field.name != TIMESTAMP]),
    )
    flights = flights.set_column(
        flights.schema.get_field_index("carrier"), "carrier", table.column("key").cast(pa.string())
    )
    times = table.column("timestamp").cast(schema.field(TIMESTAMP).type)
    return flights.add_column(schema.get_field_index(TIMESTAMP), TIMESTAMP, times).select(schema.names)


def _bounds(table: pa.Table) -> tuple[int, int]:
    if not table.num_rows:
        return 0, 0
    offsets = table.column("offset")
    return offsets[0].as_py(), offsets[-1].as_py() + 1


def _spans(scan: Scan) -> bool:
    return all(share.records for share in scan.explain().tiers)


def _share_text(scan: Scan) -> str:
    shares: dict[str, Any] = {share.tier: share.records for share in scan.explain().tiers}
    return ", ".join(f"{shares[tier]:,} {tier}" for tier in ("cold", "warm", "hot"))
