"""Heads and entries for tests, by hand and by hypothesis."""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID, uuid4, uuid5

from hypothesis import strategies as st

from tiered.format.manifest import Head, ObjectEntry, PageRef, RowGroup
from tiered.format.manifest_codec import decode_page, encode_page

STORE = UUID(int=1)
TOPIC = UUID(int=2)


def entry(
    base: int,
    end: int,
    segment: int | tuple[int, ...] = 1,
    *,
    sealed: bool = True,
    groups: int = 1,
    **changes: object,
) -> ObjectEntry:
    """An entry whose parts add up, with row groups of 100 bytes."""
    ids = (segment,) if isinstance(segment, int) else segment
    groups = min(groups, end - base)
    edges = [base + (end - base) * i // groups for i in range(groups + 1)]
    rows = tuple(
        RowGroup(low, high, high - low, i * 100, 100, 7 * i, low * 10, high * 10)
        for i, (low, high) in enumerate(pairwise(edges))
    )
    values: dict[str, object] = {
        "name": f"{base:020d}-00000001-{uuid5(STORE, repr((end, ids, sealed, changes)))}.parquet",
        "base_offset": base,
        "end_offset": end,
        "record_count": end - base,
        "min_timestamp_us": base * 10,
        "max_timestamp_us": end * 10,
        "last_append_us": end * 10,
        "segment_ids": tuple(UUID(int=item) for item in ids),
        "generation": 0,
        "sealed": sealed,
        "bytes": groups * 100 + 50,
        "schema_id": 0,
        "tail_position": groups * 100,
        "tail_crc": 99,
        "content_hash": "ab",
        "origin_hash": "cd",
        "row_groups": rows,
    }
    return ObjectEntry(**{**values, **changes})  # type: ignore[arg-type]


def empty_head(**changes: object) -> Head:
    values: dict[str, object] = {
        "store_id": STORE,
        "topic_id": TOPIC,
        "partition": 3,
        "epoch": 1,
        "lineages": ((1, 0),),
        "commit_id": "first",
        "schemas": {0: "schema"},
    }
    return Head(**{**values, **changes})  # type: ignore[arg-type]


class MemoryPages:
    """Pages as encoded bytes in a dict; counts how often each is loaded."""

    def __init__(self) -> None:
        self.saved: dict[str, bytes] = {}
        self.loads: list[str] = []

    def save_page(self, entries: tuple[ObjectEntry, ...]) -> PageRef:
        ref, data = encode_page(f"{uuid4()}.json.zst", entries)
        self.saved[ref.name] = data
        return ref

    def load_page(self, ref: PageRef) -> tuple[ObjectEntry, ...]:
        self.loads.append(ref.name)
        return decode_page(self.saved[ref.name], ref, where=ref.name)

    def all_entries(self, head: Head) -> list[ObjectEntry]:
        return [item for ref in head.pages for item in self.load_page(ref)] + list(head.inline)


@st.composite
def entries(draw: st.DrawFn, minimum: int = 0, maximum: int = 6) -> tuple[ObjectEntry, ...]:
    """Entries end to end from a random offset."""
    at = draw(st.integers(0, 2**40))
    found = []
    for segment in range(draw(st.integers(minimum, maximum))):
        end = at + draw(st.integers(1, 1000))
        found.append(
            entry(
                at,
                end,
                segment + 1,
                sealed=draw(st.booleans()),
                groups=draw(st.integers(1, 3)),
                generation=draw(st.integers(0, 3)),
                last_append_us=draw(st.integers(-(2**62), 2**62)),
            )
        )
        at = end
    return tuple(found)
