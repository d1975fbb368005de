"""Splits of snapshots as the planner sees them."""

from __future__ import annotations

from uuid import UUID

from hypothesis import strategies as st

from tiered.format.manifest import ObjectEntry, RowGroup
from tiered.reader.splits import ColdSource, Split, Tier, WarmSource

MIB = 1 << 20


def cold(partition: int, base: int, groups: list[tuple[int, int]]) -> Split:
    """Return a split of a whole object with row groups of so many records and bytes."""
    offset, position, found = base, 0, []
    for records, size in groups:
        found.append(RowGroup(offset, offset + records, records, position, size, 0, 0, 0))
        offset, position = offset + records, position + size
    entry = ObjectEntry(
        name=f"{base}", base_offset=base, end_offset=offset, record_count=offset - base, min_timestamp_us=0,
        max_timestamp_us=0, last_append_us=0, segment_ids=(UUID(int=base + 1),), generation=0, sealed=True,
        bytes=position, schema_id=0, tail_position=position, tail_crc=0, row_groups=tuple(found),
    )  # fmt: skip
    return Split("t", partition, base, offset, Tier.COLD, position, ColdSource("", (entry,)))


def warm(partition: int, base: int, records: int, size: int) -> Split:
    return Split(
        "t", partition, base, base + records, Tier.WARM, size, WarmSource(f"{base}.log", UUID(int=base))
    )


@st.composite
def snapshots(draw: st.DrawFn) -> list[Split]:
    splits = []
    for partition in range(draw(st.integers(0, 3))):
        base = draw(st.integers(0, 10))
        for _ in range(draw(st.integers(0, 5))):
            if draw(st.booleans()):
                group = st.tuples(st.integers(1, 50), st.integers(1, 3 * MIB))
                split = cold(partition, base, draw(st.lists(group, min_size=1, max_size=8)))
                # What a start offset or a warmer copy leaves of an object.
                first = draw(st.integers(base, split.end_offset - 1)) if not splits else base
                split = split.clip(first, draw(st.integers(first + 1, split.end_offset)))
            else:
                split = warm(partition, base, draw(st.integers(1, 50)), draw(st.integers(0, 5 * MIB)))
            splits.append(split)
            base = split.end_offset
    return splits
