"""The manifest: what is published decodes to itself or not at all, and every change keeps it whole."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.manifest_values import MemoryPages, empty_head, entries, entry
from tiered.errors import ColdStorageError, CorruptionError, UnsupportedFormat
from tiered.format.document import encode_document
from tiered.format.manifest import Head, ObjectEntry, Origin, PageRef, RowGroup, covers
from tiered.format.manifest_changes import (
    INLINE_ENTRIES_MAX,
    add_objects,
    add_schemas,
    raise_start_offset,
    spill,
)
from tiered.format.manifest_checks import check_entries, check_head, check_object
from tiered.format.manifest_codec import (
    MANIFEST_VERSION,
    PAGE_RAW_BYTES_MAX,
    decode_head,
    decode_page,
    encode_head,
    encode_page,
)


def head_of(objects: tuple[ObjectEntry, ...], **changes: object) -> Head:
    """A head that holds `objects`, the first half of them in a page."""
    if not objects:
        return empty_head(**changes)
    pages = MemoryPages()
    half = len(objects) // 2
    refs = (pages.save_page(objects[:half]),) if half else ()
    values = {
        "start_offset": objects[0].base_offset,
        "end_offset": objects[-1].end_offset,
        "pages": refs,
        "inline": objects[half:],
        **changes,
    }
    return empty_head(**values)


heads = st.builds(
    head_of,
    entries(),
    epoch=st.integers(5, 2**31),
    lineages=st.just(((1, 0), (5, 7))),
    origins=st.sampled_from([(), (Origin(5, 9, 1, 8, 2),)]),
    previous_commit_ids=st.sampled_from([(), ("a",), ("b", "a")]),
    schemas=st.dictionaries(st.integers(1, 9), st.text("ABCabc019+/=", max_size=20)).map(
        lambda d: {0: "x", **d}
    ),
    committed_us=st.integers(0, 2**62),
    rewinds=st.sampled_from([(), ((5, 9),)]),
)


@given(heads)
def test_a_head_decodes_to_itself(head: Head) -> None:
    assert check_head(head) == []
    assert decode_head(encode_head(head), where="head") == head


@given(heads, st.data())
@settings(max_examples=80)
def test_a_damaged_head_is_corruption_and_nothing_else(head: Head, data: st.DataObject) -> None:
    good = encode_head(head)
    bad = bytearray(good)
    if data.draw(st.booleans()):
        bit = data.draw(st.integers(0, len(good) * 8 - 1))
        bad[bit // 8] ^= 1 << bit % 8
    else:
        del bad[data.draw(st.integers(0, len(good) - 2)) :]
    with pytest.raises(CorruptionError) as caught:
        decode_head(bytes(bad), where="s3://b/head.json")
    assert caught.value.where == "s3://b/head.json"


@given(entries(minimum=1))
def test_a_page_decodes_to_itself(objects: tuple[ObjectEntry, ...]) -> None:
    ref, data = encode_page("p", objects)
    assert (ref.base_offset, ref.end_offset) == (objects[0].base_offset, objects[-1].end_offset)
    assert decode_page(data, ref, where="p") == objects


@pytest.mark.parametrize("name", ["", "../store.json", "a/b.parquet", "..", ".hidden", "a\\b"])
def test_a_name_that_leads_elsewhere_is_corruption(name: str) -> None:
    """Names become keys of the bucket and paths of local copies: who wrote the manifest must not choose these."""
    ref, data = encode_page("p", (replace(entry(0, 2, 1), name=name),))
    with pytest.raises(CorruptionError, match="name of an object"):
        decode_page(data, ref, where="p")


@given(entries(minimum=1, maximum=3), st.data())
@settings(max_examples=80)
def test_a_damaged_page_is_corruption_and_nothing_else(
    objects: tuple[ObjectEntry, ...], data: st.DataObject
) -> None:
    """Also where the CRC in the head was made for the damaged bytes: what comes out is whole, or an error."""
    ref, good = encode_page("p", objects)
    bad = bytearray(good)
    if data.draw(st.booleans()):
        bit = data.draw(st.integers(0, len(good) * 8 - 1))
        bad[bit // 8] ^= 1 << bit % 8
    else:
        del bad[data.draw(st.integers(0, len(good) - 1)) :]
    with pytest.raises(CorruptionError, match="checksum"):
        decode_page(bytes(bad), ref, where="p")
    blind = replace(ref, bytes=len(bad), crc=crc32c(bytes(bad)))
    with suppress(CorruptionError):
        assert decode_page(bytes(bad), blind, where="p") == objects


def test_every_single_bit_of_a_head_counts() -> None:
    good = encode_head(head_of((entry(0, 10, groups=2), entry(10, 20, 2))))
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode_head(bytes(bad), where="head")


def _forge(values: dict[str, object], path: list[object], value: object) -> bytes:
    """Change one field of a head and give it a valid checksum."""
    at = values
    for step in path[:-1]:
        at = at[step]  # type: ignore[index, assignment]
    if value is KeyError:
        del at[path[-1]]  # type: ignore[arg-type]
    else:
        at[path[-1]] = value  # type: ignore[index]
    return encode_document(values)


FIELDS = [
    [name]
    for name in [
        "version",
        "store_id",
        "topic_id",
        "partition",
        "epoch",
        "lineages",
        "commit_id",
        "previous_commit_ids",
        "start_offset",
        "end_offset",
        "schemas",
        "pages",
        "inline",
        "committed_us",
    ]
] + [
    ["inline", 0],
    ["inline", 0, "segment_ids"],
    ["inline", 0, "sealed"],
    ["inline", 0, "bytes"],
    ["inline", 0, "row_groups"],
    ["inline", 0, "row_groups", 0],
    ["inline", 0, "row_groups", 0, 3],
    ["pages", 0],
    ["pages", 0, "crc"],
    ["lineages", 0],
    ["origins"],
    ["origins", 0],
    ["origins", 0, 2],
]
ODD = [
    KeyError,
    None,
    "x",
    -1,
    1.5,
    True,
    [],
    {},
    [[]],
    [{}],
    [None],
    2**70,
    {"1": []},
    {"x": "y"},
    [1, 2, 3],
]


@pytest.mark.parametrize("path", FIELDS, ids=str)
def test_a_head_with_a_valid_checksum_and_nonsense_in_it_is_still_an_error_of_ours(
    path: list[object],
) -> None:
    head = head_of(
        (entry(0, 10), entry(10, 20, 2)),
        schemas={0: "x"}, epoch=2, lineages=((1, 0), (2, 9)), origins=(Origin(2, 5, 1, 9, 0),),
    )  # fmt: skip
    for value in ODD:
        values = json.loads(encode_head(head))
        del values["format"], values["crc32c"]
        with suppress(CorruptionError, UnsupportedFormat):
            assert check_head(decode_head(_forge(values, list(path), value), where="h")) == []


def test_a_newer_version_is_named_as_such() -> None:
    values = json.loads(encode_head(empty_head()))
    del values["format"], values["crc32c"]
    with pytest.raises(UnsupportedFormat, match="newer"):
        decode_head(encode_document({**values, "version": MANIFEST_VERSION + 1}), where="h")
    raw = json.dumps({"version": MANIFEST_VERSION + 1, "new": "form"}).encode()
    data = zstandard.compress(raw)
    with pytest.raises(UnsupportedFormat, match="newer"):
        decode_page(data, PageRef("p", 0, 1, 0, 0, 1, len(data), crc32c(data)), where="p")


def test_a_page_never_grows_beyond_the_limit() -> None:
    bomb = zstandard.compress(b"0" * (PAGE_RAW_BYTES_MAX + 1))
    assert len(bomb) < 10_000
    with pytest.raises(CorruptionError, match="declares"):
        decode_page(bomb, PageRef("p", 0, 1, 0, 0, 1, len(bomb), crc32c(bomb)), where="p")
    undeclared = zstandard.ZstdCompressor(write_content_size=False).compress(b"{}")
    with pytest.raises(CorruptionError, match="declares"):
        decode_page(undeclared, PageRef("p", 0, 1, 0, 0, 1, len(undeclared), crc32c(undeclared)), where="p")


def test_the_sealed_whole_of_a_segment_replaces_its_tails_in_one_step() -> None:
    pages = MemoryPages()
    tails = [entry(10, 14, 2, sealed=False), entry(14, 19, 2, sealed=False)]
    head = add_objects(empty_head(), [entry(0, 10, 1)], pages)
    for tail in tails:
        head = add_objects(head, [tail], pages)
    assert not covers(head.inline, UUID(int=2), 10, 19)
    whole = entry(10, 25, 2)
    head = add_objects(head, [whole], pages)
    assert [item.name for item in head.inline][1:] == [whole.name]
    assert (head.start_offset, head.end_offset, check_head(head)) == (0, 25, [])
    assert covers(head.inline, UUID(int=2), 10, 25)


@pytest.mark.parametrize(
    ("fresh", "reason"),
    [
        ([entry(21, 30, 3)], "missing before"),
        ([entry(10, 15, 2)], "only a part"),
        ([entry(5, 20, (1, 2))], "only a part"),
        ([entry(10, 25, 3)], "another segment"),
        ([entry(10, 25, 2, sealed=False)], "sealed already"),
        ([entry(10, 20, 2)], "higher generation"),
        ([entry(10, 20, 2, generation=1), entry(22, 24, 3)], "end to end"),
        ([entry(15, 20, 2, generation=2)], "only a part"),
    ],
)
def test_what_was_planned_on_another_head_is_refused(fresh: list[ObjectEntry], reason: str) -> None:
    head = add_objects(empty_head(), [entry(0, 10, 1), entry(10, 20, 2, generation=1)], MemoryPages())
    with pytest.raises(ColdStorageError, match=reason) as caught:
        add_objects(head, fresh, MemoryPages())
    assert not caught.value.retryable


@pytest.mark.parametrize("inline", [1, 64])
def test_a_cut_replaces_the_live_part_of_the_first_object(
    inline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a page, beside entries below the start offset, or in the head; never above it, and never of another segment."""
    monkeypatch.setattr("tiered.format.manifest_changes.INLINE_ENTRIES_MAX", inline)
    pages = MemoryPages()
    whole = [entry(0, 10, 1), entry(10, 30, (3, 2)), entry(30, 40, 4), entry(40, 50, 5)]
    head = empty_head()
    for item in whole:
        head = spill(add_objects(head, [item], pages), pages)
    head = raise_start_offset(head, 25)
    for refused in (entry(26, 30, 3), entry(25, 30, 2), entry(25, 29, 3), entry(24, 30, 2)):
        with pytest.raises(ColdStorageError, match="do not fit the manifest"):
            add_objects(head, [replace(refused, generation=1)], pages)
    part = entry(25, 30, 3, generation=1)
    after = spill(add_objects(head, [part], pages), pages)
    live = [item for item in pages.all_entries(after) if item.end_offset > 25]
    assert live == [part, *whole[2:]]
    assert check_head(after) + check_entries(after, live) == []


def test_covering_needs_the_segment_and_all_of_it() -> None:
    objects = [entry(0, 10, 1), entry(10, 20, (2, 3)), entry(20, 30, 4)]
    assert covers(objects, UUID(int=3), 12, 20)
    assert not covers(objects, UUID(int=1), 10, 20)
    assert not covers(objects, UUID(int=1), 0, 11)
    assert not covers([entry(0, 5, 1), entry(5, 10, 1)], UUID(int=1), 0, 10)


def test_the_start_offset_drops_whole_objects_and_never_goes_back() -> None:
    pages = MemoryPages()
    head = add_objects(empty_head(), [entry(i * 10, i * 10 + 10, i + 1) for i in range(4)], pages)
    raised = raise_start_offset(head, 15)
    assert [item.base_offset for item in raised.inline] == [10, 20, 30]
    assert check_head(raised) == []
    assert raise_start_offset(raised, 3) is raised
    beyond = raise_start_offset(raised, 100)
    assert (beyond.start_offset, beyond.end_offset, beyond.inline, check_head(beyond)) == (100, 100, (), [])
    late = add_objects(beyond, [entry(30, 40, 9)], pages)
    assert late is beyond


def test_a_schema_id_keeps_its_schema() -> None:
    head = add_schemas(empty_head(), {1: "new"})
    assert head.schemas == {0: "schema", 1: "new"}
    with pytest.raises(ColdStorageError):
        add_schemas(head, {1: "other"})


@pytest.mark.extended
def test_a_head_stays_small_and_sealed_entries_are_not_rewritten() -> None:
    """A year of hourly segments with 100 tails each: pages of a useful size, and a head that stays small."""
    pages = MemoryPages()
    head, at = empty_head(), 0
    for segment in range(1, 120):
        base = at
        for _ in range(100):
            head = spill(add_objects(head, [entry(at, at + 1, segment, sealed=False)], pages), pages)
            at += 1
        head = spill(add_objects(head, [entry(base, at, segment)], pages), pages)
        assert len(head.inline) <= INLINE_ENTRIES_MAX
        assert check_head(head) == []
    found = pages.all_entries(head)
    assert check_entries(head, found) == []
    assert [item.base_offset for item in found] == list(range(0, at, 100))
    assert min(ref.count for ref in head.pages) >= INLINE_ENTRIES_MAX // 2 - 1
    assert len(encode_head(head)) < 200_000


def test_a_merge_deep_in_the_past_rewrites_its_pages_alone() -> None:
    pages = MemoryPages()
    head = empty_head()
    for i in range(2000):
        head = spill(add_objects(head, [entry(i, i + 1, i + 1)], pages), pages)
    before = head.pages
    assert len(before) >= 4
    low, high = before[1].base_offset + 3, before[1].base_offset + 13
    merged = entry(low, high, tuple(range(low + 1, high + 1)))
    after = add_objects(head, [merged], pages)
    assert (after.pages[0], *after.pages[2:]) == (before[0], *before[2:])
    assert after.inline == head.inline
    found = pages.all_entries(after)
    assert check_head(after) + check_entries(after, found) == []
    assert len(found) == 1991


def test_pages_that_merges_emptied_are_joined() -> None:
    """However a log is merged, its pages stay few: one that is small takes in the one before it."""
    pages = MemoryPages()
    head = empty_head()
    for i in range(2000):
        head = spill(add_objects(head, [entry(i, i + 1, i + 1)], pages), pages)
    for low in range(0, 1900, 100):
        head = add_objects(head, [entry(low, low + 100, tuple(range(low + 1, low + 101)))], pages)
    assert check_head(head) + check_entries(head, pages.all_entries(head)) == []
    assert len(head.pages) <= 2


def test_a_head_says_what_its_pages_hold() -> None:
    """Policies and figures need no page; a page that holds something else is found."""
    pages = MemoryPages()
    head = empty_head()
    for i in range(300):
        head = spill(add_objects(head, [entry(i, i + 1, i + 1)], pages), pages)
    for ref in decode_head(encode_head(head), where="h").pages:
        held = pages.load_page(ref)
        assert ref.record_count == sum(item.record_count for item in held)
        assert ref.object_bytes == sum(item.bytes for item in held)
        assert ref.last_append_us == max(item.last_append_us for item in held)
        for name in ("record_count", "object_bytes", "last_append_us"):
            with pytest.raises(CorruptionError, match=name):
                pages.load_page(replace(ref, **{name: getattr(ref, name) + 1}))
            assert pages.load_page(replace(ref, **{name: None})) == held  # as an early release wrote it


class Log:
    """What the manifest stands for: who holds each offset."""

    def __init__(self) -> None:
        self.start = 0
        self.owners: list[int] = []


@pytest.mark.extended
@given(st.data())
@settings(max_examples=max(15, settings.default.max_examples // 10), deadline=None)
def test_any_row_of_changes_keeps_every_offset_exactly_once(data: st.DataObject) -> None:
    pages, head, log = MemoryPages(), empty_head(), Log()
    segment, base = 1, 0
    for _ in range(data.draw(st.integers(1, 60))):
        step = data.draw(st.sampled_from(["tail", "tails", "seal", "merge", "start", "cut"]))
        end = len(log.owners)
        if step in ("tail", "tails"):
            for _ in range(40 if step == "tails" else 1):
                end = len(log.owners)
                head = spill(add_objects(head, [entry(end, end + 2, segment, sealed=False)], pages), pages)
                log.owners += [segment] * 2
        elif step == "seal" and end > max(base, log.start):
            head = spill(add_objects(head, [entry(base, end + 1, segment)], pages), pages)
            log.owners.append(segment)
            segment, base = segment + 1, end + 1
        elif step == "merge":
            live = [item for item in pages.all_entries(head) if item.sealed and item.base_offset >= log.start]
            if len(live) >= 2:
                at = data.draw(st.integers(0, len(live) - 2))
                pair = live[at : at + 2]
                if pair[0].end_offset == pair[1].base_offset:
                    ids = tuple(item.int for e in pair for item in e.segment_ids)
                    new = entry(pair[0].base_offset, pair[1].end_offset, ids, generation=1)
                    head = spill(add_objects(head, [new], pages), pages)
        elif step == "cut":
            first = next((item for item in pages.all_entries(head) if item.end_offset > log.start), None)
            if first is not None and first.sealed and first.base_offset < log.start:
                ids = (first.segment_ids[0].int, *set(log.owners[log.start : first.end_offset]))
                part = entry(
                    log.start, first.end_offset, tuple(dict.fromkeys(ids)), generation=first.generation + 1
                )
                head = spill(add_objects(head, [part], pages), pages)
                assert first not in pages.all_entries(head)
        elif step == "start" and end:
            log.start = data.draw(
                st.integers(log.start, min(base, end)) if base >= log.start else st.just(log.start)
            )
            head = raise_start_offset(head, log.start)
        found = [item for item in pages.all_entries(head) if item.end_offset > head.start_offset]
        assert check_head(head) + check_entries(head, found) == []
        assert (head.start_offset, head.end_offset) == (log.start, len(log.owners))
        for item in found:
            owners = {
                UUID(int=owner) for owner in log.owners[max(item.base_offset, log.start) : item.end_offset]
            }
            assert owners <= set(item.segment_ids)
        assert decode_head(encode_head(head), where="h") == head


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"end_offset": 31}, "ends at 20"),
        ({"start_offset": 10}, "below the start offset"),
        ({"start_offset": 25}, "out of order"),
        ({"lineages": ()}, "lineages"),
        ({"lineages": ((9, 0),)}, "lineage is of epoch 9"),
        ({"origins": (Origin(1, 0, 1, 9, 0),)}, "origin of lineage 1"),
        ({"origins": (Origin(2, 0, 1, 9, 0),)}, "origin of lineage 2"),
        (
            {"lineages": ((1, 0), (2, 0)), "epoch": 2, "origins": (Origin(2, 0, 1, 8, 9),)},
            "origin of lineage 2",
        ),
        (
            {"lineages": ((1, 0), (2, 0)), "epoch": 2, "origins": (Origin(2, 0, 1, 9, 0),) * 2},
            "origins are not",
        ),
        ({"commit_id": ""}, "commit ids"),
        ({"previous_commit_ids": ("first",)}, "commit ids"),
        ({"schemas": {}}, "unknown schema"),
        ({"inline": (entry(0, 10, 1), entry(11, 20, 2))}, "begins at 11"),
        ({"inline": (entry(0, 10, 1), entry(9, 20, 2))}, "begins at 9"),
        ({"inline": (entry(0, 20, ()),)}, "no segment"),
        ({"inline": ()}, "nothing holds"),
    ],
)
def test_the_invariants_notice(change: dict[str, object], problem: str) -> None:
    head = empty_head(end_offset=20, inline=(entry(0, 10, 1), entry(10, 20, 2)))
    assert check_head(head) == []
    assert any(problem in found for found in check_head(replace(head, **change)))  # type: ignore[arg-type]


def test_the_parts_of_an_object_add_up() -> None:
    good = entry(0, 10, groups=2)
    assert check_object(good) == []
    first, second = good.row_groups
    for bad in (
        replace(good, record_count=9),
        replace(good, tail_position=199),
        replace(good, bytes=200),
        replace(good, row_groups=(first,)),
        replace(good, row_groups=(second, first)),
        replace(good, row_groups=(first, replace(second, position=101))),
        replace(good, row_groups=(first, replace(second, end_offset=11))),
        replace(good, row_groups=(first, replace(second, record_count=0))),
    ):
        assert check_object(bad) != []


def test_an_object_without_records_is_possible_after_a_compaction() -> None:
    gone = entry(0, 10, record_count=0, row_groups=(), tail_position=0)
    assert check_object(gone) == []
    assert isinstance(entry(0, 1).row_groups[0], RowGroup)
