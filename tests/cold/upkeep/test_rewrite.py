"""A rewrite of random objects keeps exactly the records that it is to keep, whatever the objects, the start and the filter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cold.parquet_objects import rows, topic_schema
from tests.support.memory_store import MemoryStore
from tiered.cold.fetch.object_reader import read_object
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.parquet.layout import object_schema
from tiered.cold.parquet.writer import write_object
from tiered.cold.upkeep.inspect import read_facts_of_entry, rebuild_entry
from tiered.cold.upkeep.rewrite import rewrite_objects, rewritten_facts
from tiered.errors import CorruptionError
from tiered.format.manifest import ObjectEntry
from tiered.format.manifest_checks import check_object
from tiered.format.predicate import Comparison, Not, Or, Predicate
from tiered.format.row_filter import ALL_ROWS, RowFilter
from tiered.format.segment_facts import ProducerState, SegmentFacts

SCHEMA = topic_schema(rows(1))


def bucket() -> PartitionManifest:
    return PartitionManifest(MemoryStore(), "t", UUID(int=2), 0)


def write(cold: PartitionManifest, number: int, table: pa.Table, base: int, end: int) -> ObjectEntry:
    """Write one segment as an object: its rows in ``[base, end)``, which may have gaps."""
    stamps = table.column("timestamp").cast(pa.int64()).to_pylist() or [0]
    facts = SegmentFacts(
        store_id=UUID(int=1), topic_id=UUID(int=2), segment_id=UUID(int=10 + number), partition=0, generation=0,
        schema_id=0, base_offset=base, end_offset=end, record_count=table.num_rows,
        min_timestamp_us=min(stamps), max_timestamp_us=max(stamps), created_us=number, last_append_us=number + 1,
        origin_hash=f"{number + 1:032x}", prev_origin_hash=f"{number:032x}" if number else "",
        content_hash=f"{number + 1:032x}", producers=(ProducerState(number, 0, number, base),),
    )  # fmt: skip
    name = f"{base:020d}-00000001-{UUID(int=number)}.parquet"
    with cold.store.upload(cold.keys.data(name)) as upload:
        return write_object(
            upload, object_schema(SCHEMA), table.to_batches(7), facts, name=name, sealed=True, row_group_bytes=900
        )  # fmt: skip


def read(cold: PartitionManifest, entry: ObjectEntry) -> list[dict[str, Any]]:
    batches = read_object(cold.store, cold.keys.data(entry.name), entry, SCHEMA)
    return [row for batch in batches for row in batch.to_pylist()]


@st.composite
def sources(draw: st.DrawFn) -> tuple[PartitionManifest, list[ObjectEntry]]:
    """Neighbours of a few segments, each dense, with gaps, or without any record; some are merged already."""
    cold, entries, base = bucket(), [], 1000
    for number in range(draw(st.integers(1, 5))):
        end = base + draw(st.integers(1, 60))
        offsets = [o for o in range(base, end) if draw(st.sampled_from([True, True, True, False]))]
        if draw(st.booleans()):
            offsets = list(range(base, end))
        table = rows(3000).take([offset - 1000 for offset in offsets])
        entries.append(write(cold, number, table, base, end))
        base = end
    if len(entries) > 2 and draw(st.booleans()):
        merged = rewrite_objects(cold, entries[:2], SCHEMA, f"{1000:020d}-00000001-{UUID(int=99)}.parquet")
        entries[:2] = [merged]
    return cold, entries


def predicates() -> st.SearchStrategy[Predicate | None]:
    number = st.integers(0, 300).map(lambda value: Comparison("number", "<", value))
    name = st.sampled_from(["name-0", "name-3", "none"]).map(lambda value: Comparison("name", "==", value))
    offset = st.integers(990, 1310).map(lambda value: Comparison("offset", ">=", value))
    leaf = number | name | offset
    return st.none() | leaf | leaf.map(Not) | st.tuples(leaf, leaf).map(Or)


def matches(predicate: Predicate | None, row: dict[str, Any]) -> bool | None:
    """The model: what SQL says of one row."""
    match predicate:
        case None:
            return True
        case Not(negated):
            outcome = matches(negated, row)
            return None if outcome is None else not outcome
        case Or(parts):
            outcomes = [matches(part, row) for part in parts]
            return True if True in outcomes else None if None in outcomes else False
        case Comparison(column, operator, value):
            mine = row[column]
            if mine is None:
                return None
            return {"<": mine < value, "==": mine == value, ">=": mine >= value}[operator]
    raise AssertionError(predicate)


@pytest.mark.extended
@given(sources(), st.integers(0, 1), predicates(), st.data())
def test_a_rewrite_holds_the_rows_that_match_from_the_start_on(
    made: tuple[PartitionManifest, list[ObjectEntry]],
    cut: int,
    predicate: Predicate | None,
    data: st.DataObject,
) -> None:
    cold, entries = made
    base, end = entries[0].base_offset, entries[-1].end_offset
    start = data.draw(st.integers(base, end - 1)) if cut else 0
    before = [row for entry in entries for row in read(cold, entry)]
    row_filter = RowFilter.of(predicate, "t", 0)
    name = f"{max(start, base):020d}-00000002-{UUID(int=100)}.parquet"
    entry = rewrite_objects(
        cold, entries, SCHEMA, name, row_group_bytes=900, start_offset=start, row_filter=row_filter
    )
    wanted = [row for row in before if row["offset"] >= start and matches(predicate, row) is True]
    assert read(cold, entry) == wanted
    assert (entry.base_offset, entry.end_offset, entry.record_count) == (max(start, base), end, len(wanted))
    assert check_object(entry) == []
    assert rebuild_entry(cold.store, cold.keys.data(name)) == entry, "the object alone says the same"
    check_facts(cold, entries, entry, wanted, start)


def check_facts(
    cold: PartitionManifest,
    inputs: list[ObjectEntry],
    entry: ObjectEntry,
    wanted: list[dict[str, Any]],
    start: int,
) -> None:
    """The facts of each segment that is left: its identity and hashes stay, its range and counts are true."""
    originals = [
        facts
        for item in inputs
        for facts in read_facts_of_entry(cold.store, cold.keys.data(item.name), item)
        if facts.end_offset > start
    ]
    found = read_facts_of_entry(cold.store, cold.keys.data(entry.name), entry)
    assert rewritten_facts([entry], found), "they lie end to end"
    assert [facts.segment_id for facts in found] == [facts.segment_id for facts in originals]
    assert set(entry.segment_ids) == {facts.segment_id for facts in originals}
    assert entry.segment_ids[0] == inputs[-1].segment_ids[0]
    assert (entry.origin_hash, entry.last_append_us) == (inputs[-1].origin_hash, inputs[-1].last_append_us)
    assert entry.generation == max(item.generation for item in inputs) + 1
    assert found[-1].producers == originals[-1].producers
    for mine, theirs in zip(found, originals, strict=True):
        own = [row for row in wanted if mine.base_offset <= row["offset"] < mine.end_offset]
        assert mine.record_count == len(own)
        assert (mine.base_offset, mine.end_offset) == (max(start, theirs.base_offset), theirs.end_offset)
        assert (mine.origin_hash, mine.prev_origin_hash) == (theirs.origin_hash, theirs.prev_origin_hash)
        same = len(own) == theirs.record_count and mine.base_offset == theirs.base_offset
        assert mine.content_hash == (theirs.content_hash if same else "")
        if own and not same:
            stamps = [int(row["timestamp"].timestamp() * 1_000_000) for row in own]
            assert (mine.min_timestamp_us, mine.max_timestamp_us) == (min(stamps), max(stamps))


def plain(cold: PartitionManifest, counts: list[int]) -> list[ObjectEntry]:
    edges = accumulate(counts, initial=1000)
    return [
        write(cold, number, rows(3000).slice(low - 1000, high - low), low, high)
        for number, (low, high) in enumerate(pairwise(edges))
    ]


@pytest.mark.parametrize("fault", ["dropped by pruning", "a value", "a row too many"])
@pytest.mark.parametrize("start", [0, 1020])
def test_the_result_is_compared_with_rows_that_were_not_pruned(
    monkeypatch: pytest.MonkeyPatch, fault: str, start: int
) -> None:
    """Whatever goes wrong between the inputs and the upload: nothing is returned that could be published."""
    cold = bucket()
    entries = plain(cold, [30, 50])
    row_filter = RowFilter.of(Comparison("number", "<", 70), "t", 0)

    def spoilt(store: Any, key: str, entry: Any, schema: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        batches = read_object(store, key, entry, schema, **options)
        if "start_offset" not in options:  # the comparison
            yield from batches
            return
        if fault == "a row too many":
            options.pop("row_filter")
            yield from read_object(store, key, entry, schema, **options)
            return
        for number, batch in enumerate(batches):
            if fault == "dropped by pruning":
                yield from [] if number == 0 and entry is entries[1] else [batch]
                continue
            columns = list(batch.columns)
            columns[1] = pa.array([*columns[1].to_pylist()[:-1], "other"])
            yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    monkeypatch.setattr("tiered.cold.upkeep.rewrite.read_object", spoilt)
    with pytest.raises(CorruptionError, match="differs from its sources|more records than the other"):
        rewrite_objects(cold, entries, SCHEMA, "new.parquet", start_offset=start, row_filter=row_filter)


def test_a_row_that_is_lost_in_a_merge_is_missed_before_the_upload_is_visible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without start and filter the facts say how many there are."""
    cold = bucket()
    entries = plain(cold, [30, 50])

    def lossy(store: Any, key: str, entry: Any, schema: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in read_object(store, key, entry, schema, **options):
            yield batch.slice(1) if "start_offset" in options else batch

    monkeypatch.setattr("tiered.cold.upkeep.rewrite.read_object", lossy)
    with pytest.raises(CorruptionError, match="records instead of 80"):
        rewrite_objects(cold, entries, SCHEMA, "new.parquet")
    assert cold.keys.data("new.parquet") not in cold.store.objects  # type: ignore[attr-defined]


def test_segments_that_leave_a_gap_are_refused() -> None:
    cold = bucket()
    first, second, third = plain(cold, [10, 20, 30])
    with pytest.raises(CorruptionError, match="do not lie end to end"):
        rewrite_objects(cold, [first, third], SCHEMA, "new.parquet")
    with pytest.raises(CorruptionError, match="object and manifest disagree"):
        rewrite_objects(
            cold, [replace(first, generation=7), second], SCHEMA, "new.parquet", row_filter=ALL_ROWS
        )
