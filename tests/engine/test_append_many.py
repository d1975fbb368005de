"""`append_many` of plain records goes by columns, and appends what `append` of each record would."""

from __future__ import annotations

import os
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tiered
from tests.support.clock import Clock
from tests.support.disks import FailingDisk
from tests.support.stores import open_store, stepwise
from tiered.engine import append, ingest
from tiered.engine.host import Host
from tiered.errors import DiskFull
from tiered.format.record import partition_of
from tiered.hot.row_buffer import PlainRecords

RECORD_BYTES_MAX = 4096
KEYS = st.sampled_from([None, b"", b"a", b"b", b"cc", b"d" * 50])
SIZES = st.sampled_from([0, 1, 30, 300, 900])


@st.composite
def plain_lists(draw: st.DrawFn) -> list[Any]:
    """A list of bytes, or of dicts of value and key; each record has its number in its value, or else in its key."""
    count = draw(st.integers(0, 60))
    if draw(st.booleans()):
        return [b"%d." % number + b"v" * draw(SIZES) for number in range(count)]
    records = []
    for number in range(count):
        if draw(st.integers(0, 9)):
            record: dict[str, Any] = {"value": b"%d." % number + b"v" * draw(SIZES)}
            if draw(st.booleans()):
                record["key"] = draw(KEYS)
        else:
            record = {"key": b"%d." % number}
        records.append(record)
    return records


def parts(record: Any) -> tuple[bytes | None, bytes | None]:
    """Key and value of a record of a list."""
    return (None, record) if isinstance(record, bytes) else (record.get("key"), record.get("value"))


def stored(topic: tiered.Topic) -> dict[int, list[tuple[Any, ...]]]:
    """Key, value, headers and timestamp of each record, by partition."""
    return {
        partition: [
            (record.key, record.value, record.headers, record.timestamp)
            for record in topic.read(partition, 0)
        ]
        for partition in range(topic.partitions)
    }


def options(block_bytes: int, every: int | None) -> tiered.Settings:
    store: dict[str, Any] = {"block_bytes": block_bytes, "max_record_bytes": RECORD_BYTES_MAX}
    return stepwise(store if every is None else {**store, "sync_every": every})


@pytest.mark.extended
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(plain_lists(), min_size=1, max_size=4),
    st.sampled_from([1, 3]),
    st.sampled_from([512, 4096, 1 << 20]),
    st.sampled_from([None, 5, 40]),
)
def test_lists_are_appended_as_their_records_one_by_one(
    tmp_path: Path, lists: list[list[Any]], partitions: int, block_bytes: int, every: int | None
) -> None:
    """Each record once, in the order of its partition, where its key places it; of one partition, at the same offset."""
    path, clock = tmp_path / os.urandom(8).hex(), Clock()
    with open_store(path, None, clock, settings=options(block_bytes, every)) as store:
        together, single = (
            store.create_topic(name, partitions=partitions) for name in ("together", "single")
        )
        for records in lists:
            together.append(b"before")
            single.append(b"before")
            ranges = together.append_many(records)
            for record in records:
                key, value = parts(record)
                single.append(value, key=key)
            assert sum(item.end - item.start for item in ranges) == len(records)
            check_ranges(together, ranges, records)
            clock.advance(1)
        found, expected = stored(together), stored(single)
        if partitions == 1:
            assert found == expected
        keyed = [
            {partition: [row for row in rows if row[0]] for partition, rows in each.items()}
            for each in (found, expected)
        ]
        assert keyed[0] == keyed[1]
        assert Counter(map(repr, chain(*found.values()))) == Counter(map(repr, chain(*expected.values())))


def check_ranges(topic: tiered.Topic, ranges: list[tiered.OffsetRange], records: list[Any]) -> None:
    """The ranges hold exactly the records, those of a partition in their order."""
    numbers: list[int] = []
    for partition in range(topic.partitions):
        mine = [
            record
            for item in ranges
            if item.partition == partition
            for record in topic.read(partition, item.start, item.end - item.start)
        ]
        placed = [
            int((record.key if record.value is None else record.value).split(b".")[0]) for record in mine
        ]
        assert placed == sorted(placed)
        assert all(partition_of(record.key, topic.partitions) == partition for record in mine if record.key)
        numbers += placed
    assert sorted(numbers) == list(range(len(records)))


WRONG: dict[str, tuple[Any, type[Exception]]] = {
    "a value too large": ({"value": b"v" * (RECORD_BYTES_MAX + 1)}, tiered.RecordTooLarge),
    "a key and a value too large": ({"value": b"v" * RECORD_BYTES_MAX, "key": b"k"}, tiered.RecordTooLarge),
    "a value that is no bytes": ({"value": 1.5}, tiered.SchemaMismatch),
    "a key that is none": ({"value": b"v", "key": 1.5}, tiered.SchemaMismatch),
    "an unknown name": ({"value": b"v", "keys": b"k"}, tiered.SchemaMismatch),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("at", [0, 15, 29])
def test_a_list_with_a_wrong_record_is_refused_as_a_whole(tmp_path: Path, name: str, at: int) -> None:
    wrong, error = WRONG[name]
    with open_store(tmp_path, None, Clock(), settings=options(1 << 20, None)) as store:
        topic = store.create_topic("log", partitions=2)
        for good in ({"value": b"v"}, {"value": b"v" * 4000, "key": b"k"}):
            records = [good] * 30
            records[at] = wrong
            with pytest.raises(error):
                topic.append_many(records)
        with pytest.raises(tiered.RecordTooLarge):
            topic.append_many([b"v"] * 20 + [b"v" * (RECORD_BYTES_MAX + 1)])
        assert [offsets.end for offsets in topic.offsets().values()] == [0, 0]


@pytest.mark.parametrize(
    "record", [{"value": b"v", "headers": {"h": b"1"}}, {"value": b"v", "timestamp": 7}, {"value": b"v", "partition": 1}, {"value": b"text", "key": "text"}, {"value": bytearray(b"v")}],
    ids=["headers", "a timestamp", "a partition", "a text as key", "a bytearray"],
)  # fmt: skip
def test_records_that_are_not_plain_go_one_by_one(tmp_path: Path, record: dict[str, Any]) -> None:
    with open_store(tmp_path, None, Clock(), settings=options(1 << 20, None)) as store:
        shape = store.create_topic("log").opened  # type: ignore[attr-defined]
        assert ingest.plain_records(shape, [{"value": b"v"}] * 20) is not None
        assert ingest.plain_records(shape, [{"value": b"v"}] * 20 + [record]) is None


def test_short_lists_share_a_block_and_long_ones_make_their_own(tmp_path: Path) -> None:
    with open_store(tmp_path, None, Clock(), settings=options(1 << 20, None)) as store:
        topic = store.create_topic("log")
        writer = topic.opened.writer(0)  # type: ignore[attr-defined]
        for _ in range(3):
            topic.append_many([b"v"] * 1000)
        assert len(writer.active.segment.index) == 0
        topic.append_many([b"v" * 100] * 10_000)
        assert writer.active.segment.end_offset == writer.end_offset == 13_000
        assert len(writer.active.segment.index) <= 3


def test_records_without_a_key_spread_over_partitions_a_block_at_a_time(tmp_path: Path) -> None:
    """In lists without a key, and in lists where some records have one."""
    with open_store(tmp_path, None, Clock(), settings=options(2048, None)) as store:
        for name, others in (("alone", []), ("beside-keys", [{"value": b"v", "key": b"k"}] * 5)):
            topic = store.create_topic(name, partitions=3)
            for _ in range(60):
                topic.append_many([*others, *[{"value": b"v" * 30}] * 10])
            counts = [
                sum(record.key is None for record in topic.read(partition, 0)) for partition in range(3)
            ]
            assert sum(counts) == 600
            assert min(counts) > 60


def test_a_long_list_is_cut_into_batches_of_bounded_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "_MANY_BYTES_MAX", 2000)
    with open_store(tmp_path, None, Clock(), settings=options(512, None)) as store:
        topic = store.create_topic("log")
        values = [b"%03d" % number * 30 for number in range(200)]
        assert topic.append_many(values) == [tiered.OffsetRange(0, 0, 200)]
        assert [record.value for record in topic.read(0, 0)] == values


def test_a_full_disk_keeps_what_found_room_and_says_where(tmp_path: Path) -> None:
    """Of a list that fills several blocks of pending rows, what was added stays; the error names it."""
    full = [False]

    def fail(name: str, path: Path) -> None:
        if name == "write" and full[0]:
            raise DiskFull("no room (injected)")

    values = [b"%03d" % number * 20 for number in range(30)]
    host = Host(fs=FailingDisk(fail), clock=Clock())
    with tiered.open(tmp_path, settings=options(8192, None), host=host) as store:
        topic = store.create_topic("log")
        topic.append_many([b"before" * 100] * 12)
        full[0] = True
        with pytest.raises(DiskFull, match="offsets"):
            for _ in range(10):
                topic.append_many(values)
        end = topic.opened.writer(0).end_offset  # type: ignore[attr-defined]
        full[0] = False
        found = [record.value for record in topic.read(0, 0)]
        assert len(found) == end
        assert found[12:] == (values * 10)[: end - 12]


@given(st.lists(st.integers(0, 200), min_size=1, max_size=40), st.integers(-10, 4000), st.integers(-1, 45))
def test_records_that_fill_a_buffer_end_with_the_one_that_reaches_its_bytes(
    lengths: list[int], bytes_max: int, rows_max: int
) -> None:
    """As appends one by one, each of which is refused once the buffer is full."""
    records = PlainRecords.of([[None] * len(lengths), [b"v" * length for length in lengths]], lengths)
    count = total = 0
    while count < len(lengths) and total < bytes_max and count < rows_max:
        total += records.slice(count, count + 1).total_bytes
        count += 1
    assert records.count_to_fill(bytes_max, rows_max) == count
