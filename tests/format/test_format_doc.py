"""docs/format.md says what the code does: positions, sizes, names and limits are compared one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import fields, replace
from uuid import UUID

import pytest

from tests.support.manifest_values import empty_head, entry
from tests.support.memory_store import MemoryStore
from tests.support.paths import ROOT
from tiered.cold.manifest.leases import Lease
from tiered.cold.manifest.restore_intent import Intent
from tiered.cold.object_store import protocol
from tiered.cold.parquet import layout as parquet_format
from tiered.cold.parquet import page_memory
from tiered.cold.upkeep.rewrite import rewritten_facts
from tiered.flight.wire.serving_file import ServingFile
from tiered.format import block, manifest, manifest_changes, manifest_codec, schema, segment, topic_meta
from tiered.format.codec import Codec
from tiered.format.segment_facts import ProducerState, SegmentFacts
from tiered.format.topic_meta import TopicMeta
from tiered.survey.scrub_state import Damage, ScrubState
from tiered.warm.bucket_binding import BucketBinding

TEXT = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
V1 = ROOT / "tests" / "data" / "v1"


def section(heading: str) -> str:
    """What follows a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"docs/format.md has no section {heading!r}"
    return found[1]


def table(heading: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    rows = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


def keys(heading: str) -> list[str]:
    """Every name in the first column of a section's table."""
    return [name for row in table(heading) for name in re.findall(r"`([^`]+)`", row[0])]


def layout(*formats: str) -> list[tuple[int, int, bool]]:
    """Position, size and whether it is reserved, of every field of structs that follow each other."""
    sizes = {"s": 1, "x": 1, "B": 1, "H": 2, "I": 4, "Q": 8, "q": 8}
    found, at = [], 0
    for count, code in re.findall(r"(\d*)([a-zA-Z])", "".join(formats)):
        repeat = int(count or 1)
        if code in "sx":
            reserved = code == "x"
            if reserved and found and found[-1][2]:
                start, size, _ = found.pop()
                found.append((start, size + repeat, True))
            else:
                found.append((at, repeat, reserved))
            at += repeat
            continue
        for _ in range(repeat):
            found.append((at, sizes[code], False))
            at += sizes[code]
    return found


def documented(rows: Iterable[list[str]]) -> list[tuple[int, int, bool]]:
    return [(int(position), int(size), text == "reserved") for position, size, text in rows]


BINARY = {
    "Block header": (block._HEADER.format, block._CRC.format),
    "Chunk directory": (block._ENTRY.format,),
    "Segment header": (segment._FIXED.format, segment._CRC.format),
    "Segment footer": (segment._FOOTER.format,),
    "Segment trailer": (segment._TRAILER.format, segment._CRC.format, "4s"),
}


@pytest.mark.parametrize("heading", BINARY)
def test_tables_agree_with_the_structs(heading: str) -> None:
    """Every field, every reserved byte, in their places and sizes, without gaps."""
    rows = [row for row in table(heading) if row[0].isdigit() and row[1].isdigit()]
    wanted = layout(*(item.lstrip("<") for item in BINARY[heading]))
    assert documented(rows) == wanted


def test_tables_end_where_the_code_says() -> None:
    ends = {
        heading: sum(layout(*(item.lstrip("<") for item in formats))[-1][:2])
        for heading, formats in BINARY.items()
    }
    assert ends == {
        "Block header": block.HEADER_BYTES, "Chunk directory": block._ENTRY.size, "Segment header": segment.FIXED_BYTES,
        "Segment footer": segment._FOOTER.size, "Segment trailer": segment.TRAILER_BYTES,
    }  # fmt: skip
    index, facts = table("Segment footer")[-2:]
    assert index[:2] == [str(segment._FOOTER.size), f"{8 * segment._INDEX_COLUMNS} n"]
    assert facts[0] == f"{segment._FOOTER.size} + {8 * segment._INDEX_COLUMNS} n"


@pytest.mark.parametrize(
    ("module", "headings"),
    [
        (block, ["Block header", "Chunk directory"]),
        (segment, ["Segment header", "Segment footer", "Segment trailer"]),
    ],
)
def test_modules_open_with_the_same_tables(module: object, headings: list[str]) -> None:
    """Positions and sizes in the docstring of the code that encodes them."""
    text = module.__doc__ or ""
    found = re.findall(r"^(\d+) +(\d+) +(?!n )\S", text, re.MULTILINE)
    rows = [
        (row[0], row[1])
        for heading in headings
        for row in table(heading)
        if row[0].isdigit() and row[1].isdigit()
    ]
    assert found == rows


def test_fields_are_in_the_order_of_the_header() -> None:
    """The table's rows, reserved ones aside, are the fields of `BlockHeader` and the checksum."""
    rows = [row[2] for row in table("Block header") if row[2] != "reserved"]
    assert len(rows) == len(block.BlockHeader._fields) + 1
    similar = {"magic": "magic", "codec": "codec", "record_count": "record count", "base_offset": "base offset",
               "stored_length": "stored length", "writer_epoch": "writer epoch", "base_sequence": "base sequence",
               "segment_id": "segment id", "synced_through": "synced_through", "chunk_count": "chunk count"}  # fmt: skip
    for name, start in similar.items():
        assert rows[block.BlockHeader._fields.index(name)].startswith(start)


def test_magics_flags_and_codecs() -> None:
    rows = {heading: "\n".join(row[2] for row in table(heading)) for heading in BINARY}
    assert f"magic `{block.MAGIC.decode()}`" in rows["Block header"]
    assert (
        f"{block.FLAG_OFFSETS} = offsets are stored as a column, {block.FLAG_MARK} = mark"
        in rows["Block header"]
    )
    assert ", ".join(f"{codec.value} {codec.name.lower()}" for codec in Codec) in rows["Block header"]
    assert f"magic `{segment.MAGIC.decode()}`" in rows["Segment header"]
    assert f"magic `{segment.FOOTER_MAGIC.decode()}`" in rows["Segment footer"]
    assert f"magic `{segment.TRAILER_MAGIC.decode()}`" in rows["Segment trailer"]
    for heading in ("Block header", "Segment header", "Segment footer", "Segment trailer"):
        assert f"version ({block.VERSION})" in rows[heading]


def names_of(cls: type) -> set[str]:
    return {field.name for field in fields(cls)}


def test_facts_are_all_named() -> None:
    assert set(keys("Facts")) == names_of(SegmentFacts)
    producers = next(row[1] for row in table("Facts") if "`producers`" in row[0])
    assert re.findall(r"`([^`]+)`", producers) == [field.name for field in fields(ProducerState)]


def test_the_manifest_is_all_named() -> None:
    head = json.loads(manifest_codec.encode_head(empty_head()))
    assert set(keys("head.json")) == head.keys() - {"format", "crc32c"}
    assert all(f"`{name}`" in section("head.json") for name in names_of(manifest.Head))
    assert set(keys("Page references")) == names_of(manifest.PageRef)
    assert set(keys("Object entries")) == names_of(manifest.ObjectEntry)
    rows = [(int(row[0]), row[1].strip("`")) for row in table("Row groups")]
    assert rows == list(enumerate(field.name for field in fields(manifest.RowGroup)))


DOCUMENTS = {
    "store.json": V1 / "store" / "store.json",
    "topic.json": V1 / "store" / "topics" / "records" / "topic.json",
    "start.json": V1 / "store" / "topics" / "records" / "0" / "start.json",
    "lineage.json": V1 / "documents" / "lineage.json",
    "fenced.json": V1 / "documents" / "fenced.json",
    "cold.json": V1 / "documents" / "cold.json",
    "head.json": V1 / "documents" / "head.json",
}


ADDED = {"cold.json": {"home"}, "store.json": {"features", "restore"} | names_of(Intent)}
"""Keys that the release which wrote the golden documents did not know."""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_have_the_keys_that_are_named(name: str) -> None:
    """As a release has written them."""
    written = json.loads(DOCUMENTS[name].read_bytes())
    assert written.pop("format") == 1
    assert re.fullmatch("[0-9a-f]{8}", written.pop("crc32c"))
    assert set(keys(name)) == written.keys() | ADDED.get(name, set())


def test_documents_that_are_written_now_have_them_too() -> None:
    topic = TopicMeta("t", UUID(int=1), 1, (schema.RECORD_SCHEMA,), None, None, 0).to_json()
    assert set(keys("topic.json")) == topic.keys()
    described = next(row[1] for row in table("topic.json") if "`schemas`" in row[0])
    assert re.findall(r"`([^`]+)`", described) == list(topic["schemas"][0])
    assert set(keys("cold.json")) == names_of(BucketBinding)
    assert set(keys("serving.json")) == names_of(ServingFile)
    assert set(keys("store.json")) == names_of(Intent) | {"features", "id", "restore"}


def test_what_a_scrub_and_a_lease_write_is_described() -> None:
    assert set(keys("scrub.json")) == names_of(ScrubState)
    described = next(row[1] for row in table("scrub.json") if "`damaged`" in row[0])
    assert set(re.findall(r"`([^`]+)`", described)) == names_of(Damage)
    store = MemoryStore()
    Lease.take(store)
    (written,) = (json.loads(data) for data, _ in store.objects.values())
    assert set(keys("Leases")) == written.keys() - {"format", "crc32c"}


def test_the_facts_that_a_merge_makes_anew_are_named() -> None:
    """All others are the last segment's."""
    first = SegmentFacts(
        UUID(int=1), UUID(int=2), UUID(int=3), 0, 4, 0, 10, 20, 10, 5, 9, 100, 200, 1, 7, "a", "z", "c",
    )  # fmt: skip
    last = replace(
        first, segment_id=UUID(int=4), base_offset=20, end_offset=35, record_count=15, min_timestamp_us=6,
        max_timestamp_us=4, created_us=300, last_append_us=150, start_offset=3, origin_hash="b", prev_origin_hash="a",
    )  # fmt: skip
    inputs = [
        entry(item.base_offset, item.end_offset, item.segment_id.int, generation=item.generation)
        for item in (first, last)
    ]
    made = rewritten_facts(inputs, [first, last])
    changed = {name for name in names_of(SegmentFacts) if getattr(made, name) != getattr(last, name)}
    rows = [re.findall(r"`([^`]+)`", row[0]) for row in table("Merged objects")]
    assert changed == {name for row in rows for name in row}
    assert (made.start_offset, made.last_append_us, made.generation, made.record_count) == (7, 200, 5, 25)


def test_the_metadata_of_objects_is_named() -> None:
    assert keys("Cold objects") == [parquet_format.FACTS_KEY.decode(), parquet_format.EXTENTS_KEY.decode()]


def test_limits() -> None:
    """Each number is the code's own."""
    assert {name: int(value) for name, value in table("Limits")} == {
        "raw bytes of a block": block.RAW_BYTES_MAX,
        "bytes of a record": block.RECORD_BYTES_MAX,
        "chunks of a block": block.CHUNKS_MAX,
        "columns of a topic": schema.COLUMNS_MAX,
        "levels of nesting": schema.DEPTH_MAX,
        "bytes of a segment's schema": segment.SCHEMA_BYTES_MAX,
        "bytes of a segment header": segment.HEADER_BYTES_MAX,
        "partitions of a topic": topic_meta.PARTITIONS_MAX,
        "entries inline in a head": manifest_changes.INLINE_ENTRIES_MAX,
        "raw bytes of a page": manifest_codec.PAGE_RAW_BYTES_MAX,
        "bytes of a document, head or page": protocol.GET_BYTES_MAX,
        "records of a row group": manifest.GROUP_RECORDS_MAX,
        "bytes of a row group, or of a tail": manifest.RANGE_BYTES_MAX,
        "bytes of the filters of an object": manifest.FILTERS_BYTES_MAX,
        "bytes of values of a row group": page_memory.VALUES_BYTES_MAX,
        "bytes of elements in lists of a row group": page_memory.ELEMENTS_BYTES_MAX,
    }
    assert schema.COLUMNS_MAX < block.CHUNKS_MAX


def test_the_record_schema_is_as_written() -> None:
    for field in schema.RECORD_SCHEMA:
        kind = str(field.type).replace("element: ", "").replace("item: ", "")
        assert f"`{field.name}: {kind}`" in section("Schemas").replace("\n", " ")


def test_errors_that_are_named_exist() -> None:
    import tiered

    named = set(re.findall(r"`([A-Z][A-Za-z]+(?:Error|Format))`", TEXT))
    assert named == {"CorruptionError", "UnsupportedFormat"}
    assert all(hasattr(tiered, name) for name in named)
