"""The rule of compaction: whether the objects of a partition are compacted, so that each key keeps its latest record. Pure.

The log is *clean* up to an offset: before it, no two records in objects have the same key. A compaction looks up the keys of
the rest, the *dirty* part, and rewrites each object in which one of them has an older record. It reads the keys of all
objects, so it waits for a share of dirty bytes.

Objects whose segments are pinned to the disk, or not in the bucket, end the range, as a damaged object does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...base.units import format_duration, to_us
from ...format.manifest import Compaction
from ..actions import Compact
from ..cost import rewrite_requests
from ..facts import ObjectFact, SegmentFact
from ..policy import CompactKeysRule
from .case import PartitionCase
from .evict import evictable


def compaction(case: PartitionCase, segments: Sequence[SegmentFact], start_offset: int) -> Compact | None:
    """Return the compaction of a partition, if one is due or under way.

    Parameters
    ----------
    start_offset
        The start offset of the log after this plan's expiry.
    """
    rule, state, facts = case.policy.compact_keys, case.facts.compaction, case.facts
    if rule.after is None or state is None or not case.has_cold:
        return None
    # The manifest has to say first where the log begins: before that, a deleted record counts as live.
    if (facts.published_start_offset or 0) < start_offset:
        return None
    objects = list(_compactable(case, rule, segments, start_offset))
    if not objects:
        return None
    end, tombstones = objects[-1].end_offset, _tombstones(rule, state, case.now_us)
    if state.is_under_way and state.target_offset > start_offset:
        target, reason = state.target_offset, "the compaction goes on"
        objects = [item for item in objects if item.end_offset > state.next_offset]
    else:
        size = sum(item.bytes for item in objects)
        dirty = sum(item.bytes for item in objects if item.end_offset > state.clean_offset)
        if end > state.clean_offset and dirty >= rule.dirty * size:
            target = end
            reason = f"{dirty / size:.0%} of the objects is new >= compact_keys.dirty {rule.dirty:.0%}"
        elif tombstones:
            target = state.clean_offset
            reason = f"tombstones have compact_keys.keep_tombstones {format_duration(rule.keep_tombstones)}"
        else:
            return None
    objects = [item for item in objects if item.base_offset < target]
    return _compact(case, objects, target, tombstones, reason) if objects and target <= end else None


def _compactable(
    case: PartitionCase, rule: CompactKeysRule, segments: Sequence[SegmentFact], start_offset: int
) -> Iterator[ObjectFact]:
    """Yield the objects that may be compacted, from the start of the log on."""
    assert rule.after is not None
    free = {item.segment_id for item in evictable(case, segments)}
    horizon = min(
        (item.base_offset for item in segments if item.segment_id not in free),
        default=case.facts.published_offset,
    )
    for item in case.facts.objects:
        if item.end_offset <= start_offset:
            continue
        young = case.now_us - item.last_append_us < to_us(rule.after)
        if young or item.damaged or item.end_offset > horizon:
            return
        yield item


def _tombstones(rule: CompactKeysRule, state: Compaction, now_us: int) -> int:
    """Return the offset before which tombstones have been the latest records of their keys for long enough."""
    return state.tombstone_offset if now_us - state.tombstone_us >= to_us(rule.keep_tombstones) else 0


def _compact(
    case: PartitionCase, objects: Sequence[ObjectFact], end_offset: int, tombstone_offset: int, reason: str
) -> Compact:
    size = sum(item.bytes for item in objects)
    count = sum(item.count for item in objects)
    return Compact(
        topic=case.facts.topic,
        partition=case.facts.partition,
        segment_id=None,
        base_offset=objects[0].base_offset,
        end_offset=end_offset,
        bytes=size,
        requests=rewrite_requests(size, count),
        reason=reason,
        tombstone_offset=tombstone_offset,
    )
