"""A schema that grows under a writer: every row is of the schema its segment says."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.disks import FullDisk
from tests.support.partition_writers import (
    TYPED,
    append_row,
    writing,
)
from tiered.errors import DiskFull, Fenced
from tiered.hot.pending_rows import SchemaGrew
from tiered.warm.partition_directory import list_segments
from tiered.warm.segment_reader import SegmentFile

GROWN = TYPED.with_columns(pa.schema([("c", pa.int8())]))


def rows_of(directory: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name in list_segments(directory).segments:
        segment = SegmentFile.open(directory / str(name), use_mmap=False)
        for block in segment.blocks(0, 1 << 60):
            rows += segment.decode(block).select(segment.header.schema.names[1:]).to_pylist()
    return rows


def test_a_schema_grows_between_two_segments(tmp_path: Path) -> None:
    """Rows before it have the old columns, rows after it the new; a row checked before it gets nulls."""
    with writing(tmp_path, TYPED) as writer:
        append_row(writer, 1, "x")
        writer.change_schema(GROWN)
        append_row(writer, 2, "y")
        append_row(writer, 3, "z", 4)
        with pytest.raises(SchemaGrew):
            writer.append_bodies([], 3, keep=True)
    assert rows_of(tmp_path) == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "y", "c": None},
        {"a": 3, "b": "z", "c": 4},
    ]
    headers = [SegmentFile.open(tmp_path / str(name)).header for name in list_segments(tmp_path).segments]
    assert [header.schema_id for header in headers] == [0, 1]


def test_a_schema_that_is_no_newer_changes_nothing(tmp_path: Path) -> None:
    """It comes from a thread that was slower than another."""
    with writing(tmp_path, TYPED) as writer:
        writer.change_schema(GROWN)
        append_row(writer, 1, "x", 2)
        writer.change_schema(TYPED)
        writer.change_schema(GROWN)
        append_row(writer, 3, "y", 4)
    assert rows_of(tmp_path) == [{"a": 1, "b": "x", "c": 2}, {"a": 3, "b": "y", "c": 4}]
    assert len(list_segments(tmp_path).segments) == 1


def test_the_schema_of_a_fenced_partition_stays(tmp_path: Path) -> None:
    """Its files are another's to change."""
    with suppress(Fenced), writing(tmp_path, TYPED) as writer:
        append_row(writer, 1, "x")
        writer.flush()
        append_row(writer, 2, "pending")
        writer.fence("another owns it")
        with pytest.raises(Fenced):
            writer.change_schema(GROWN)
    assert rows_of(tmp_path) == [{"a": 1, "b": "x"}]
    assert len(list_segments(tmp_path).segments) == 1


def test_rows_that_find_no_room_before_a_schema_change_are_pending_still(tmp_path: Path) -> None:
    disk = FullDisk()
    with writing(tmp_path, TYPED, fs=disk) as writer:
        append_row(writer, 1, "x")
        disk.full = True
        with pytest.raises(DiskFull):
            writer.change_schema(GROWN)
        assert (writer.pending.buffer.base_offset, len(writer.pending.buffer.timestamps_us)) == (0, 1)
        disk.full = False
        append_row(writer, 2, "y")
    assert rows_of(tmp_path) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


def test_what_is_kept_in_memory_is_of_the_schema_that_holds_now(tmp_path: Path) -> None:
    """Readers take the blocks of a view for ones of one schema."""
    with writing(tmp_path, TYPED) as writer:
        append_row(writer, 1, "x")
        assert [block.schema.names[1:] for block in writer.view().recent] == [["a", "b"]]
        writer.change_schema(GROWN)
        assert writer.view().recent == ()
        append_row(writer, 2, "y", 3)
        assert [block.schema.names[1:] for block in writer.view().recent] == [["a", "b", "c"]]


def test_a_schema_may_grow_before_the_first_row(tmp_path: Path) -> None:
    with writing(tmp_path, TYPED) as writer:
        writer.change_schema(GROWN)
        append_row(writer, 1, "x", 2)
        writer.roll()
    assert rows_of(tmp_path) == [{"a": 1, "b": "x", "c": 2}]


def test_a_schema_that_grew_while_the_writer_was_dead(tmp_path: Path) -> None:
    """topic.json comes first: the next writer seals the old segment and begins one of the new schema."""
    with writing(tmp_path, TYPED) as writer:
        append_row(writer, 1, "x")
    with writing(tmp_path, GROWN) as writer:
        assert append_row(writer, 2, "y", 3) == 1
    assert rows_of(tmp_path) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y", "c": 3}]
