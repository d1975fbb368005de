"""The rule of compression: which local segments are encoded again with another codec. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from uuid import UUID

from ...base.units import to_us
from ..actions import Compress
from ..facts import SegmentFact
from .case import PartitionCase, age_reason, segment_fields

# Re-encoding a file that is evicted sooner than this costs more than the room it gains.
COMPRESS_PAYS_US = 3_600_000_000
# Blocks of less than this share of their target on average were flushed by the clock: one re-encoding merges them.
_SMALL_BLOCKS = 4


def compressions(
    case: PartitionCase, segments: Iterable[SegmentFact], evicted: Collection[UUID | None]
) -> Iterator[Compress]:
    """Yield the old segments that profit, without those that this plan evicts or a later plan will evict soon."""
    rule = case.policy.compress
    if rule.after is None:
        return
    for segment in segments:
        if segment.newest or not segment.sealed or not segment.local_bytes:
            continue
        age = case.age_us(segment)
        if age < to_us(rule.after) or segment.segment_id in evicted or _leaves_soon(case, segment):
            continue
        if segment.local_bytes < rule.min_bytes:
            continue
        if segment.codec != rule.codec:
            reason = f"codec {segment.codec}, compress.codec is {rule.codec}"
        elif has_small_blocks(segment, rule.block_bytes):
            reason = f"{segment.block_count} small blocks"
        else:
            continue
        yield Compress(
            **segment_fields(segment),
            bytes=segment.local_bytes,
            codec=rule.codec,
            level=rule.level,
            block_bytes=rule.block_bytes,
            reason=f"{reason}; {age_reason(age, 'compress.after', to_us(rule.after))}",
        )


def _leaves_soon(case: PartitionCase, segment: SegmentFact) -> bool:
    limit, pin = case.policy.local_retention.age, case.policy.pin
    will_be_cold = case.has_cold and (segment.in_manifest or case.policy.offload.after is not None)
    if pin.topic or limit is None or not will_be_cold:
        return False
    stays_us = max(to_us(limit), 0 if pin.age is None else to_us(pin.age))
    return stays_us - case.age_us(segment) < COMPRESS_PAYS_US


def has_small_blocks(segment: SegmentFact, block_bytes: int) -> bool:
    """Whether merging pays; only for the file as appended, so that no result is encoded again and again."""
    small = segment.raw_bytes < segment.block_count * block_bytes // _SMALL_BLOCKS
    return segment.generation == 0 and segment.block_count > 1 and small
