"""The invariants of a head, a page and an object's entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from .manifest import FILTERS_BYTES_MAX, GROUP_RECORDS_MAX, RANGE_BYTES_MAX, Head, ObjectEntry, PageRef


def check_head(head: Head) -> list[str]:
    """Return the problems of a head by itself; every published head has none."""
    problems: list[str] = []
    if not 0 <= head.start_offset <= head.end_offset:
        problems.append(f"start offset {head.start_offset} and end offset {head.end_offset} are out of order")
    if not head.lineages or any(a[0] >= b[0] for a, b in pairwise(head.lineages)):
        problems.append("lineages are not in order")
    elif head.lineages[-1][0] > head.epoch or head.lineages[0][0] < 1:
        problems.append(f"the newest lineage is of epoch {head.lineages[-1][0]}, the head of {head.epoch}")
    problems += _check_origins(head)
    ids = (head.commit_id, *head.previous_commit_ids)
    if not all(ids) or len(set(ids)) != len(ids):
        problems.append("commit ids are not unique")
    spans = [(ref.base_offset, ref.end_offset, f"page {ref.name}") for ref in head.pages]
    spans += [(entry.base_offset, entry.end_offset, entry.name) for entry in head.inline]
    problems += _check_spans(spans, head.start_offset, head.end_offset)
    names = [ref.name for ref in head.pages]
    if len(set(names)) != len(names):
        problems.append("a page is named twice")
    for ref in head.pages:
        if ref.count < 1 or ref.bytes < 1:
            problems.append(f"page {ref.name} is empty")
    problems += _check_each(head.inline, head.schemas)
    done = head.compaction
    if done is not None and not (
        0
        <= done.removed_offset
        <= done.tombstone_offset
        <= done.clean_offset
        <= done.target_offset
        <= head.end_offset
        and 0 <= done.next_offset <= done.target_offset
    ):
        problems.append("the offsets of its compaction are out of order")
    return problems


def _check_origins(head: Head) -> list[str]:
    epochs = {epoch for epoch, _ in head.lineages}
    problems = [
        f"the origin of lineage {origin.epoch} contradicts itself"
        for origin in head.origins
        if not (
            {origin.parent, origin.epoch} <= epochs
            and origin.parent < origin.epoch
            and 0 <= origin.start_offset <= origin.end_offset
        )
    ]
    if any(a.epoch >= b.epoch for a, b in pairwise(head.origins)):
        problems.append("origins are not in order")
    return problems


def check_entries(head: Head, entries: Sequence[ObjectEntry]) -> list[str]:
    """Return the problems of all entries of `head` in order, those of its pages and the inline ones."""
    # A page may outlive its first entries, so entries below the start offset are no problem.
    live = [entry for entry in entries if entry.end_offset > head.start_offset]
    spans = [(entry.base_offset, entry.end_offset, entry.name) for entry in live]
    return _check_spans(spans, head.start_offset, head.end_offset) + _check_each(live, head.schemas)


def summary(entries: Sequence[ObjectEntry]) -> dict[str, int]:
    """Return the summary of a page's entries in its reference; see `PageRef`."""
    return {
        "record_count": sum(entry.record_count for entry in entries),
        "object_bytes": sum(entry.bytes for entry in entries),
        "last_append_us": max(entry.last_append_us for entry in entries),
    }


def check_page(ref: PageRef, entries: Sequence[ObjectEntry]) -> list[str]:
    """Return the differences of a page from its reference in the head."""
    if not entries or len(entries) != ref.count:
        return [f"page {ref.name} holds {len(entries)} entries, the head says {ref.count}"]
    if entries[0].base_offset != ref.base_offset:
        return [f"page {ref.name} begins at {entries[0].base_offset}, the head says {ref.base_offset}"]
    for name, value in summary(entries).items():
        if getattr(ref, name) not in (None, value):
            return [f"page {ref.name} has {name} {value}, the head says {getattr(ref, name)}"]
    spans = [(entry.base_offset, entry.end_offset, entry.name) for entry in entries]
    return _check_spans(spans, ref.base_offset, ref.end_offset) + _check_each(entries, None)


def _check_spans(spans: list[tuple[int, int, str]], start: int, end: int) -> list[str]:
    if not spans:
        return [] if start == end else [f"nothing holds offsets {start} to {end}"]
    problems = [f"{name} has offsets {low} to {high}" for low, high, name in spans if not 0 <= low < high]
    if spans[0][0] > start:
        problems.append(f"nothing holds offsets {start} to {spans[0][0]}")
    if spans[0][1] <= start:
        problems.append(f"{spans[0][2]} lies below the start offset {start}")
    for (_, high, before), (low, _, after) in pairwise(spans):
        if high != low:
            problems.append(f"{before} ends at {high} and {after} begins at {low}")
    if spans[-1][1] != end:
        problems.append(f"{spans[-1][2]} ends at {spans[-1][1]}, not at {end}")
    return problems


def _check_each(entries: Iterable[ObjectEntry], schemas: Mapping[int, str] | None) -> list[str]:
    problems: list[str] = []
    names: set[str] = set()
    for entry in entries:
        if entry.name in names:
            problems.append(f"{entry.name} is named twice")
        names.add(entry.name)
        if not entry.segment_ids:
            problems.append(f"{entry.name} belongs to no segment")
        if schemas is not None and entry.schema_id not in schemas:
            problems.append(f"{entry.name} has the unknown schema {entry.schema_id}")
        problems += check_object(entry)
    return problems


def check_object(entry: ObjectEntry) -> list[str]:
    """Return the problems of one entry by itself."""
    groups = entry.row_groups
    bad: list[str] = []
    if not 0 <= entry.record_count <= entry.end_offset - entry.base_offset:
        bad.append(f"{entry.record_count} records in offsets {entry.base_offset} to {entry.end_offset}")
    if sum(group.record_count for group in groups) != entry.record_count:
        bad.append("its row groups hold another number of records")
    edges = [(0, entry.base_offset)]
    for group in groups:
        edges.append((group.position + group.length, group.end_offset))
        if (group.position, group.base_offset) != edges[-2] or group.length < 1:
            bad.append(f"its row group at byte {group.position} does not follow the one before")
        if group.length > RANGE_BYTES_MAX or group.record_count > GROUP_RECORDS_MAX:
            bad.append(
                f"its row group at byte {group.position} has {group.length} bytes and {group.record_count} records"
            )
        if not 0 < group.record_count <= group.end_offset - group.base_offset:
            bad.append(f"its row group at byte {group.position} has {group.record_count} records")
    if edges[-1][0] != entry.tail_position or not entry.tail_position < entry.bytes:
        bad.append("its bytes do not add up")
    if entry.bytes - entry.tail_position > RANGE_BYTES_MAX:
        bad.append(f"its footer has {entry.bytes - entry.tail_position} bytes")
    filters_bytes = entry.footer_position - entry.tail_position
    if not entry.footer_position:
        if entry.footer_crc or entry.filters_crc:
            bad.append("it has checksums of filters, and no filters")
    elif not (0 < filters_bytes <= FILTERS_BYTES_MAX and entry.footer_position < entry.bytes):
        bad.append(f"its filters have {filters_bytes} bytes")
    if groups and edges[-1][1] != entry.end_offset:
        bad.append(f"its row groups end at offset {edges[-1][1]}")
    return [f"{entry.name}: {problem}" for problem in bad]
