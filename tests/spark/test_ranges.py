"""Ranges and filters of a read mean what they mean in Kafka's source and in ``scan()``."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import tiered
from tiered.errors import ConfigError, OffsetOutOfRange

pytest.importorskip("pyspark")
from tests.spark.stores import ORIGIN_MS, Place, assert_same, expected
from tests.support.spark_read import direct


def test_offsets_choose_a_range_of_each_partition(place: Place) -> None:
    topic = place.topic("records")
    ends = {partition: found.end for partition, found in topic.offsets().items()}
    options = {
        "startingOffsets": json.dumps({"records": {"0": 100, "1": -2, "2": ends[2] - 10}}),
        "endingOffsets": json.dumps({"records": {"0": 2000, "1": 50, "2": -1}}),
    }
    scan = topic.scan(start_offset={0: 100, 2: ends[2] - 10}, end_offset={0: 2000, 1: 50})
    assert_same(direct(place.path, topic="records", **options), expected(scan))


def test_timestamps_choose_the_first_offset_at_or_after(place: Place) -> None:
    """As in Kafka's source: a place in the log, not a filter; older records behind it are read."""
    topic = place.topic("records")
    table = expected(topic.scan(), ["partition", "offset", "timestamp"])
    at = ORIGIN_MS + 1_500_000
    starts = {}
    for partition in range(3):
        mine = table.filter(pa.compute.equal(table["partition"], partition))
        late = mine.filter(pa.compute.greater_equal(mine["timestamp"].cast(pa.int64()), at * 1000))
        starts[partition] = late["offset"][0].as_py()
    wanted = expected(topic.scan(start_offset=starts))
    assert pa.compute.min(wanted["timestamp"].cast(pa.int64())).as_py() < at * 1000
    assert_same(direct(place.path, topic="records", startingTimestamp=at), wanted)
    each = json.dumps({"records": dict.fromkeys("012", at)})
    assert_same(direct(place.path, topic="records", startingOffsetsByTimestamp=each), wanted)
    assert_same(
        direct(place.path, topic="records", endingTimestamp=at), expected(topic.scan(end_offset=starts))
    )
    assert (
        direct(place.path, topic="records", startingTimestamp=at, endingOffsetsByTimestamp=each).num_rows == 0
    )


def test_a_timestamp_after_all_records_follows_the_strategy(place: Place) -> None:
    late = ORIGIN_MS * 2
    with pytest.raises(ConfigError, match="startingOffsetsByTimestampStrategy"):
        direct(place.path, topic="records", startingTimestamp=late)
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert direct(place.path, topic="records", startingTimestamp=late, **strategy).num_rows == 0
    whole = expected(place.topic("records").scan())
    assert_same(direct(place.path, topic="records", endingTimestamp=late), whole)


def test_rows_are_filtered_by_timestamp_partition_and_key(place: Place) -> None:
    topic = place.topic("records")
    low, high = ORIGIN_MS + 1_000_000, ORIGIN_MS + 9_000_000
    wanted = expected(topic.scan(start_timestamp=low, end_timestamp=high, partitions=[0, 2], key="k3"))
    assert wanted.num_rows > 0
    until = datetime.fromtimestamp(high / 1000, UTC).isoformat()
    options = {"fromTimestamp": low, "toTimestamp": until, "partitions": "0,2", "key": "k3"}
    assert_same(direct(place.path, topic="records", **options), wanted)


def test_a_key_is_read_as_its_column_has_it(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "store") as store:
        topic = store.create_topic("t", schema=pa.schema([("id", pa.int32())]), key="id", partitions=2)
        topic.append_batch(pa.table({"id": pa.array(range(50), pa.int32())}))
        store.flush()
        found = direct(str(tmp_path / "store"), topic="t", key="17", columns="id")
        assert found.to_pydict() == {"id": [17]}
        with pytest.raises(ConfigError, match="option key"):
            direct(str(tmp_path / "store"), topic="t", key="seventeen")


def test_a_partition_left_out_of_a_range_is_an_error(on_files: Place) -> None:
    for text in ('{"records":{"0":1,"1":1}}', '{"records":{"0":1,"1":1,"2":1,"3":1}}'):
        with pytest.raises(ConfigError, match=r"this reads \[0, 1, 2\]"):
            direct(on_files.path, topic="records", startingOffsets=text)


def test_a_range_outside_the_log_is_an_error_unless_the_user_accepts_it(own: Place) -> None:
    topic = own.topic("records")
    topic.delete_before(500, partition=0)
    end = topic.offsets()[1].end
    for options in (
        {"startingOffsets": '{"records":{"0":499,"1":-2,"2":-2}}'},
        {"startingOffsets": json.dumps({"records": {"0": -2, "1": end + 1, "2": -2}})},
        {"endingOffsets": json.dumps({"records": {"0": -1, "1": end + 1, "2": -1}})},
    ):
        with pytest.raises(OffsetOutOfRange, match="set failOnDataLoss to false"):
            direct(own.path, topic="records", **options)
    accepted = {"startingOffsets": '{"records":{"0":7,"1":-2,"2":-2}}', "failOnDataLoss": "false"}
    assert_same(direct(own.path, topic="records", **accepted), expected(topic.scan()))
