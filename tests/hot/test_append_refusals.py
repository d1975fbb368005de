"""What every append of a partition's writer checks before it adds a row: the fault, the columns, the room, the number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.support.partition_writers import (
    TOPIC,
    TYPED,
    append,
    append_batch,
    append_row,
    batch_of,
    open_writer,
    rows_of,
    writing,
)
from tiered.errors import Conflict, DiskFull, Fenced, StoreClosed
from tiered.format.block import encode_body
from tiered.format.topic_meta import TopicMeta
from tiered.hot.partition_writer import PartitionWriter
from tiered.hot.pending_rows import FULL, SchemaGrew
from tiered.hot.row_buffer import PlainRecords, RowBuffer, RowLayout

Append = Callable[[PartitionWriter], object]


def _hold(writer: PartitionWriter) -> None:
    with writer.held() as held:
        held.append([encode_body(batch_of([b"x"]))])


APPENDS: dict[str, tuple[TopicMeta, Append]] = {
    "record": (TOPIC, lambda writer: writer.append_record(None, b"x", None, 1, 10)),
    "expected": (TOPIC, lambda writer: writer.append_expected(1, (None, b"x", None), 1, 10)),
    "plain records": (TOPIC, lambda writer: writer.append_plain(PlainRecords.of([[None], [b"x"]], [1]), 1)),
    "numbered": (TOPIC, lambda writer: writer.append_numbered((1, 0, 0), (None, b"x", None), 1, 10)),
    "numbered rows": (TOPIC, lambda writer: writer.append_numbered_rows((1, 0, 0), rows_of(b"x"))),
    "numbered single": (TOPIC, lambda writer: writer.append_numbered_single((1, 0, 0), rows_of(b"x"))),
    "numbered batches": (
        TOPIC,
        lambda writer: writer.append_numbered_batches(1, 0, [batch_of([b"x"])], [np.arange(1)]),
    ),
    "batch": (TOPIC, lambda writer: append_batch(writer, [b"x"])),
    "epoch": (TOPIC, lambda writer: writer.blocks.begin_epoch(1, 1)),
    "held": (TOPIC, _hold),
    "row": (TYPED, lambda writer: writer.append_row((1, "x"), 1, 10)),
    "plain rows": (TYPED, lambda writer: writer.append_plain(PlainRecords.of([[1], ["x"]], [1]), 1)),
    "schema": (
        TYPED,
        lambda writer: writer.change_schema(TYPED.with_columns(pa.schema([("c", pa.int64())]))),
    ),
}


@pytest.mark.parametrize("name", APPENDS)
def test_a_writer_with_a_fault_adds_nothing_and_writes_nothing(name: str, tmp_path: Path) -> None:
    """Rows that were pending stay pending: a fence must keep them from the file."""
    meta, call = APPENDS[name]
    writer = open_writer(tmp_path, meta)
    append(writer, b"pending") if meta is TOPIC else append_row(writer, 0, "pending")
    writer.refuse(StoreClosed("refused (injected)"))

    with pytest.raises(StoreClosed, match="injected"):
        call(writer)

    assert (writer.end_offset, writer.active.segment.end_offset) == (1, 0)
    writer.close()


def test_a_partition_that_was_fenced_while_it_waited_for_room_is_not_resumed(tmp_path: Path) -> None:
    """Its records are another store's by then."""
    writer = open_writer(tmp_path)
    writer.pending.suspend(DiskFull("rows wait for room (injected)"))
    writer.fence("another owns it")
    with pytest.raises(Fenced, match="another owns it"), writer.resumed() as held:
        held.append([encode_body(batch_of([b"x"]))])
    assert writer.active.segment.end_offset == 0
    with pytest.raises(Fenced, match="another owns it"):
        append(writer, b"more")
    writer.close()


GROWN = RowLayout.of(pa.schema([*TYPED.schema, ("c", pa.int64())]))


def _wider(number: int) -> RowBuffer:
    rows = RowBuffer(0, GROWN)
    rows.add((number, "x", 1), 1)
    rows.timestamps_us.append(1)
    return rows


@pytest.mark.parametrize(
    "call",
    [
        lambda writer: writer.append_row((1, "x", 2), 1, 10),
        lambda writer: writer.append_expected(1, (1, "x", 2), 1, 10),
        lambda writer: writer.append_plain(PlainRecords.of([[1], ["x"], [2]], [1]), 1),
        lambda writer: writer.append_numbered((1, 0, 0), (1, "x", 2), 1, 10),
        lambda writer: writer.append_numbered_batches(
            1, 0, [_wider(1).to_batch(pa.schema([("t", pa.timestamp("us", "UTC")), *TYPED.schema, ("c", pa.int64())]))],
            [np.arange(1)],
        ),
    ],
    ids=["row", "expected", "plain rows", "numbered", "numbered batches"],
)  # fmt: skip
def test_a_row_of_more_columns_than_the_writer_has_is_not_added(call: Append, tmp_path: Path) -> None:
    with writing(tmp_path, TYPED) as writer:
        append_row(writer, 1, "before")
        with pytest.raises(SchemaGrew):
            call(writer)
        assert writer.end_offset == 1
        assert append_row(writer, 2, "after") == 1


ROWS: dict[str, tuple[TopicMeta, Callable[[PartitionWriter, int, int], object]]] = {
    "record": (TOPIC, lambda writer, size, _: writer.append_record(None, b"x", None, 1, size)),
    "expected": (TOPIC, lambda writer, size, at: writer.append_expected(at, (None, b"x", None), 1, size)),
    "numbered": (
        TOPIC,
        lambda writer, size, at: writer.append_numbered((1, 0, at), (None, b"x", None), 1, size),
    ),
    "row": (TYPED, lambda writer, size, _: writer.append_row((1, "x"), 1, size - _row_bytes(writer))),
    "expected row": (
        TYPED,
        lambda writer, size, at: writer.append_expected(at, (1, "x"), 1, size - _row_bytes(writer)),
    ),
}


def _row_bytes(writer: PartitionWriter) -> int:
    assert isinstance(writer.pending.buffer, RowBuffer)
    return writer.pending.buffer.row_bytes


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_fill_a_block_exactly_leave_no_room_for_another(name: str, tmp_path: Path) -> None:
    """By bytes, and by their number; `make_room` makes it."""
    meta, add = ROWS[name]
    for folder, limits, size in (("bytes", {"block_bytes": 200}, 100), ("rows", {"rows_max": 2}, 10)):
        with writing(tmp_path / folder, meta, **limits) as writer:
            assert [add(writer, size, at) for at in range(2)] == [0, 1]
            assert add(writer, size, 2) in (FULL, None)
            assert writer.end_offset == 2
            writer.make_room()
            assert add(writer, size, 2) == 2


def test_numbered_rows_of_exactly_a_block_are_added_and_leave_no_room(tmp_path: Path) -> None:
    rows = rows_of(b"a", b"b")
    with writing(tmp_path, block_bytes=rows.bytes) as writer:
        assert writer.append_numbered_rows((1, 0, 0), rows) == (0, 2)
        assert writer.append_numbered_rows((1, 0, 2), rows_of(b"c")) is None
        writer.make_room()
        assert writer.append_numbered_rows((1, 0, 1), rows_of(b"b")) is None, "a repeat of the last row"
        assert writer.end_offset == 2


def test_the_offsets_of_a_producer_s_rows_are_known_from_each_of_its_sequences_on(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        append(writer, b"another's")
        writer.append_numbered_rows((1, 0, 5), rows_of(b"a", b"b"))
        assert [writer.offsets_from(1, sequence) for sequence in (5, 6, 7)] == [(1, 3), (2, 3), None]
        assert writer.offsets_from(2, 0) is None


@pytest.mark.parametrize("name", ["rows", "single", "batch"])
def test_what_a_producer_appends_is_read_from_memory(name: str, tmp_path: Path) -> None:
    """Except for the blocks of a bulk load."""
    with writing(tmp_path) as writer:
        if name == "rows":
            writer.append_numbered_rows((1, 0, 0), rows_of(b"a", b"b"))
        elif name == "single":
            writer.append_numbered_single((1, 0, 0), rows_of(b"a"))
        else:
            writer.append_numbered_batches(1, 0, [batch_of([b"a"])], [np.arange(1)])
        view = writer.view()
        assert [(block.base_offset, block.end_offset) for block in view.recent] == [(0, writer.end_offset)]
        batches, numbers = [batch_of([b"c"]), batch_of([b"d"])], [np.arange(5, 6), np.arange(6, 7)]
        writer.append_numbered_batches(1, 0, batches, numbers)
        assert writer.view().recent[-1].end_offset == view.end_offset


def test_numbered_rows_at_another_offset_than_expected_are_not_added(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        append(writer, b"before")
        for call in (writer.append_numbered_rows, writer.append_numbered_single):
            with pytest.raises(Conflict):
                call((1, 0, 0), rows_of(b"x"), 0)
        assert (writer.end_offset, writer.last_sequence(1)) == (1, (-1, -1))
        assert writer.append_numbered_rows((1, 0, 0), rows_of(b"x"), 1) == (1, 2)
        assert writer.append_numbered_single((1, 0, 0), rows_of(b"x"), 7) == (1, 2), "a repeat"
