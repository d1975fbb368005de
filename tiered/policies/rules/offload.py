"""The rule of offloads: which sealed segments, and which tail of the newest one, go to the bucket next. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...base.units import to_us
from ..actions import Offload, ShipTail
from ..cost import COMMIT, upload_requests
from ..facts import SegmentFact
from ..tail_joining import tail_reason
from .case import PartitionCase, age_reason, erasure_reason, segment_fields, size_reason


def publications(
    case: PartitionCase, segments: Sequence[SegmentFact], start_offset: int, notes: list[str]
) -> Iterator[Offload | ShipTail]:
    """Walk from the published offset towards the end; stop where a record would follow a gap, and note that."""
    rule, cursor = case.policy.offload, max(case.facts.published_offset, start_offset)
    if not case.has_cold or rule.after is None:
        return
    waiting = sum(item.local_bytes for item in segments if item.sealed and not item.in_manifest)
    for segment in segments:
        if segment.in_manifest:
            cursor = max(cursor, segment.end_offset)
            continue
        if segment.base_offset > cursor:
            notes.append(
                f"{case.facts.topic}/{case.facts.partition}: offsets {cursor} to {segment.base_offset} "
                "are neither published nor local, so nothing after them is offloaded; look at the files of the partition with tiered inspect"
            )
            return
        why = _reason_to_offload(case, segment, waiting)
        if why is not None:
            yield _offload(case, segment, why)
            waiting -= segment.local_bytes
            cursor = max(cursor, segment.end_offset)
            continue
        end = min(segment.end_offset, case.facts.durable_offset)
        if cursor < end:
            if not _tail_is_due(case):
                return
            yield _ship_tail(segment, cursor, end)
            cursor = end
        if cursor < segment.end_offset:
            return


def _reason_to_offload(case: PartitionCase, segment: SegmentFact, waiting_bytes: int) -> str | None:
    rule, age = case.policy.offload, case.age_us(segment)
    assert rule.after is not None
    if not segment.sealed:
        return None
    if age >= to_us(rule.after):
        return age_reason(age, "offload.after", to_us(rule.after))
    erasure = case.facts.erasure_of(segment.base_offset)
    if erasure is not None:
        return erasure_reason(erasure)
    if rule.bytes is not None and waiting_bytes > rule.bytes:
        return size_reason(waiting_bytes, "offload.bytes", rule.bytes)
    return case.short_reason() if case.is_short else None


def _tail_is_due(case: PartitionCase) -> bool:
    interval = case.policy.offload.tail_interval
    # A clock that was once far ahead must not put the next tail off until then.
    return interval is not None and abs(case.now_us - case.facts.tail_shipped_us) >= to_us(interval)


def _offload(case: PartitionCase, segment: SegmentFact, reason: str) -> Offload:
    replaced = sum(
        item.bytes
        for item in case.facts.cold_objects
        if item.tail and item.segment_ids == (segment.segment_id,)
    )
    return Offload(
        **segment_fields(segment),
        bytes=segment.local_bytes,
        cold_bytes_delta=segment.local_bytes - replaced,
        requests=upload_requests(segment.local_bytes) + COMMIT,
        reason=reason,
    )


def _ship_tail(segment: SegmentFact, base: int, end: int) -> ShipTail:
    size = segment.local_bytes * (end - base) // (segment.end_offset - segment.base_offset)
    return ShipTail(
        **{**segment_fields(segment), "base_offset": base, "end_offset": end},
        bytes=size,
        cold_bytes_delta=size,
        requests=upload_requests(size) + COMMIT,
        reason=tail_reason(end - base),
    )
