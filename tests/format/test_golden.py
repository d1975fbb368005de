"""Golden files: what a release has written is read by this one, and by every later one."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import tiered
from tiered.format.block import FLAG_MARK, decode_header
from tiered.format.document import decode_document
from tiered.format.manifest_codec import decode_head, decode_page
from tiered.warm.bucket_binding import BucketBinding, read_binding
from tiered.warm.partition_directory import list_segments, read_fence, read_lineage, read_start_offset
from tiered.warm.segment_reader import SegmentFile

V1 = Path(__file__).resolve().parents[1] / "data" / "v1"
NOW_US = 1_750_000_000_000_000


def plain(value: Any) -> Any:
    """A value as expected.json holds it."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, (date, datetime, Decimal)):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


@pytest.fixture(scope="module")
def expected() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads((V1 / "expected.json").read_text())
    return found


def check_rows(topic: tiered.Topic, expected: list[dict[str, Any]], start: int) -> None:
    """Every column of every row from `start` on, under its offset."""
    rows = topic.scan().to_arrow().to_pylist()
    assert [row["offset"] for row in rows] == list(range(start, len(expected)))
    for row in rows:
        own = {name: plain(row[name]) for name in topic.schema.names}
        assert own == expected[row["offset"]], f"offset {row['offset']}"


def test_golden_files_are_what_they_were() -> None:
    """Nobody regenerates them to make a test pass."""
    sums = dict(reversed(line.split("  ")) for line in (V1 / "SHA256SUMS").read_text().splitlines())
    files = {
        str(path.relative_to(V1)): path
        for path in V1.rglob("*")
        if path.is_file() and path.name != "SHA256SUMS"
    }
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()} == sums
    listing = hashlib.sha256((V1 / "SHA256SUMS").read_bytes()).hexdigest()
    assert listing == "73aa1a4d5de9e018feb16c0acdfb6421941a931a8356f8679f892f849eed8dd2"


def test_a_store_of_version_1_is_read_where_it_lies(expected: dict[str, list[dict[str, Any]]]) -> None:
    """Read-only, without a byte written: segments of every codec, sealed and active, one with a torn tail."""
    with tiered.open(V1 / "store", read_only=True) as store:
        assert store.topics() == ["records", "typed"]
        check_rows(store.topic("records"), expected["records"], 1)
        check_rows(store.topic("typed"), expected["typed"], 0)
    test_golden_files_are_what_they_were()


def test_a_store_of_version_1_is_written_on(
    expected: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """The torn tail goes, appends follow, and all of it is one log."""
    shutil.copytree(V1 / "store", tmp_path / "store")
    with tiered.open(tmp_path / "store") as store:
        records, typed = store.topic("records"), store.topic("typed")
        assert records.append(b"new").offset == 20
        assert typed.append({"string": "new", "added": "x"}).offset == 4
        records.roll()
        typed.roll()
        assert records.scan(start_offset=20).to_arrow()["value"].to_pylist() == [b"new"]
        check_rows(records, [*expected["records"], {"key": None, "value": plain(b"new"), "headers": None}], 1)


def test_a_bucket_of_version_1_is_read(expected: dict[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    """From the bucket alone: documents, heads, Parquet objects of sealed segments and of a tail."""
    shutil.copytree(V1 / "bucket", tmp_path / "bucket")
    with tiered.open(f"file://{tmp_path}/bucket") as store:
        assert store.topics() == ["records", "typed"]
        check_rows(store.topic("records"), expected["records"], 1)
        check_rows(store.topic("typed"), expected["typed"], 0)


def test_the_segments_of_version_1_are_of_every_kind() -> None:
    """Codecs, generations, footers, marks: what the other tests rely on is there."""
    partition = V1 / "store" / "topics" / "records" / "0"
    segments = [SegmentFile.open(partition / str(name)) for name in list_segments(partition).segments]
    assert [item.header.generation for item in segments] == [0, 1, 1, 0]
    assert [item.facts is None for item in segments] == [False, False, False, True]
    assert [next(item.blocks(0, 100)).header.codec for item in segments] == [0, 1, 2, 0]
    first, second = segments[0], segments[1]
    assert first.facts is not None
    assert second.facts is not None
    assert second.header.prev_origin_hash == first.facts.origin_hash == first.facts.content_hash
    assert second.facts.origin_hash != second.facts.content_hash
    assert first.facts.last_append_us == first.header.created_us == NOW_US
    active = (partition / str(list_segments(partition).segments[-1])).read_bytes()
    mark = decode_header(active[-128:])
    assert (mark.flags, mark.synced_through, mark.base_offset) == (FLAG_MARK, len(active) - 128, 20)
    typed = V1 / "store" / "topics" / "typed" / "0"
    torn = SegmentFile.open(typed / str(list_segments(typed).segments[-1]))
    assert torn.header.schema_id == 1
    assert torn.scan is not None
    assert torn.scan.damage is not None


def test_the_documents_of_version_1_are_read() -> None:
    documents = V1 / "documents"
    assert read_fence(documents) == "epoch 7 began at offset 100"
    assert read_lineage(documents) == 3
    assert read_start_offset(V1 / "store" / "topics" / "records" / "0") == 1
    assert read_binding(documents) == BucketBinding(
        "s3://bucket/prefix", "http://127.0.0.1:9000", "us-east-1"
    )
    store = decode_document((V1 / "store" / "store.json").read_bytes(), where="store.json")
    assert list(store) == ["id"]


def test_the_manifest_of_version_1_is_read() -> None:
    """A head with two lineages, a page and an inline entry; every field has a value of its own."""
    documents = V1 / "documents"
    head = decode_head((documents / "head.json").read_bytes(), where="head.json")
    assert (head.store_id, head.topic_id, head.partition, head.epoch) == (UUID(int=1), UUID(int=2), 3, 4)
    assert (head.lineages, head.commit_id, head.previous_commit_ids) == (((1, 0), (3, 5)), "c", ("b", "a"))
    assert (head.start_offset, head.end_offset, head.schemas, head.committed_us) == (
        2,
        30,
        {0: "schema"},
        NOW_US,
    )
    [ref] = head.pages
    entries = (*decode_page((documents / "page.json.zst").read_bytes(), ref, where="page"), *head.inline)
    assert [(item.base_offset, item.end_offset, item.sealed) for item in entries] == [
        (0, 10, True),
        (10, 20, True),
        (20, 30, False),
    ]
    last = entries[-1]
    assert last.name == f"{20:020d}-00000003-{UUID(int=21)}.parquet"
    assert (last.segment_ids, last.generation, last.bytes) == ((UUID(int=22), UUID(int=23)), 1, 500)
    assert (last.tail_position, last.tail_crc, last.last_append_us) == (400, 0xDEADBEEF, NOW_US + 20)
    assert (last.content_hash, last.origin_hash, last.schema_id) == ("ab" * 16, "cd" * 16, 0)
    assert [(item.base_offset, item.end_offset, item.position, item.length, item.crc) for item in last.row_groups] == [
        (20, 24, 0, 150, 1), (24, 30, 150, 250, 2)
    ]  # fmt: skip
