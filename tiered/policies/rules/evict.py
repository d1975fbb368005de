"""The rule of eviction: which local segments are deleted because the bucket has them (promise P5). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...base.units import to_us
from ..actions import EvictLocal
from ..facts import SegmentFact
from .case import OUTDATED, PartitionCase, age_reason, segment_fields, size_reason


def evictable(case: PartitionCase, segments: Sequence[SegmentFact]) -> Iterator[SegmentFact]:
    """Yield the segments that may be evicted (promise P5), oldest first; the local log stays contiguous."""
    pin = case.policy.pin
    # Computed once: there may be thousands of objects and of segments.
    has_damage = any(item.damaged for item in case.facts.objects)
    for segment in segments:
        if not _is_proven(case, segment):
            return
        if has_damage and case.facts.is_damaged_in_bucket(segment):
            return
        if pin.topic or (pin.age is not None and case.age_us(segment) < to_us(pin.age)):
            return
        if segment.local_bytes:
            yield segment


def evictions(case: PartitionCase, segments: Sequence[SegmentFact]) -> Iterator[EvictLocal]:
    """Yield the evictions of outdated files, then those by the rules on age and size, oldest first."""
    rule = case.policy.local_retention
    local = sum(item.local_bytes for item in segments)
    outdated = list(_outdated(case, segments))
    yield from (evict(segment, OUTDATED) for segment in outdated)
    local -= sum(segment.local_bytes for segment in outdated)
    for segment in evictable(case, segments):
        if segment.outdated:
            continue
        age = case.age_us(segment)
        if rule.age is not None and age >= to_us(rule.age):
            reason = age_reason(age, "local_retention.age", to_us(rule.age))
        elif rule.bytes is not None and local > rule.bytes:
            reason = size_reason(local, "local_retention.bytes", rule.bytes)
        else:
            return
        yield evict(segment, reason)
        local -= segment.local_bytes


def _outdated(case: PartitionCase, segments: Sequence[SegmentFact]) -> Iterator[SegmentFact]:
    """Yield files from before an erasure or a compaction of their objects; neither their age nor a pin keeps them."""
    for segment in segments:
        if segment.outdated and _is_proven(case, segment) and not case.facts.is_damaged_in_bucket(segment):
            yield segment


def _is_proven(case: PartitionCase, segment: SegmentFact) -> bool:
    """Whether the bucket provably has all of a file that nobody appends to (promise P5)."""
    return case.has_cold and segment.sealed and not segment.newest and segment.in_manifest


def evict(segment: SegmentFact, reason: str) -> EvictLocal:
    """Return the eviction of a segment."""
    return EvictLocal(**segment_fields(segment), bytes=segment.local_bytes, reason=reason)
