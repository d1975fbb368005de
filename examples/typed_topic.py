"""A topic with columns of its own: append dicts and Arrow data, read by time and by key, add a column.

Prints::

    {0: OffsetRange(partition=0, start=0, end=62)}
    30 readings in the second half of the first hour
    31 readings of sensor b, at most 11.9 degrees
    [None, 0.55]
"""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

import tiered

schema = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("sensor", pa.string()), ("celsius", pa.float64())])
start = datetime(2025, 1, 1, tzinfo=UTC)

with tiered.open("./data") as store:
    readings = store.create_topic("readings", schema=schema, timestamp="at", key="sensor")
    readings.append({"at": start, "sensor": "a", "celsius": 7.5})
    readings.append_batch(
        pa.table(
            {
                "at": [start + timedelta(minutes=n) for n in range(60)],
                "sensor": ["ab"[n % 2] for n in range(60)],
                "celsius": [6 + n / 10 for n in range(60)],
            }
        )
    )
    readings.append({"at": start + timedelta(hours=1), "sensor": "b", "celsius": 6.1})
    print(readings.offsets())

    late = readings.scan(
        start_timestamp=start + timedelta(minutes=30), end_timestamp=start + timedelta(hours=1)
    )
    print(f"{late.to_arrow().num_rows} readings in the second half of the first hour")

    of_b = readings.scan(key="b", columns=["celsius"]).to_arrow()
    print(f"{of_b.num_rows} readings of sensor b, at most {pc.max(of_b['celsius']).as_py()} degrees")

    readings.add_columns(pa.schema([("humidity", pa.float64())]))
    readings.append({"at": start + timedelta(hours=2), "sensor": "a", "celsius": 6.0, "humidity": 0.55})
    print(readings.scan(start_offset=61, columns=["humidity"]).to_arrow()["humidity"].to_pylist())
