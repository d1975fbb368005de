"""The rule of seals: whether the active segment is sealed, by the roll rules or because an action needs it sealed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...base.units import to_us
from ..actions import Seal
from ..facts import SegmentFact
from .case import OUTDATED, PartitionCase, age_reason, erasure_reason, segment_fields, size_reason


def seals(case: PartitionCase, segments: Iterable[SegmentFact], start_offset: int) -> Iterator[Seal]:
    """Yield the seal of the active segment, if it is due."""
    for segment in segments:
        if segment.sealed or not segment.newest:
            continue
        reason = _reason_to_seal(case, segment, start_offset)
        if reason:
            yield seal(segment, reason)


def seal(segment: SegmentFact, reason: str) -> Seal:
    """Return the seal of a segment."""
    return Seal(**segment_fields(segment), bytes=segment.local_bytes, reason=reason)


def may_leave(case: PartitionCase) -> bool:
    """Whether segments are offloaded once they are sealed, and then evicted while the disk is short."""
    pin = case.policy.pin
    if not case.has_cold or case.policy.offload.after is None or pin.topic or pin.age is not None:
        return False
    return not any(item.damaged for item in case.facts.objects)


def _reason_to_seal(case: PartitionCase, segment: SegmentFact, start_offset: int) -> str | None:
    roll, offload = case.policy.roll, case.policy.offload
    if roll.bytes is not None and segment.local_bytes >= roll.bytes:
        return size_reason(segment.local_bytes, "roll.bytes", roll.bytes)
    open_us = case.now_us - segment.created_us
    if roll.age is not None and open_us >= to_us(roll.age):
        return age_reason(open_us, "roll.age", to_us(roll.age))
    erasure = case.facts.erasure_of(segment.base_offset) if case.has_cold else None
    if erasure is not None and segment.end_offset > max(segment.base_offset, start_offset):
        return erasure_reason(erasure)
    if segment.outdated:
        return OUTDATED
    # Sealing is what lets the last records of an idle partition expire, once nothing is left before them.
    if segment.base_offset <= start_offset and not case.waits(segment):
        expired = case.expired_by_age(segment)
        if expired:
            return expired
    if case.has_cold and offload.tail_interval is None and offload.after is not None:
        age = case.age_us(segment)
        if age >= to_us(offload.after):
            return age_reason(age, "offload.after", to_us(offload.after))
    return None
