"""The rule of storage classes: which objects of a partition move into another class, each once. Pure.

The cheaper classes bill a minimum size and a minimum time. Only an object that exceeds both moves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ...base.units import format_duration, to_us
from ..actions import ChangeClass
from ..cost import COMMIT, COPY_REQUEST_BYTES, Requests, upload_requests
from ..facts import ObjectFact, PartitionFacts
from ..policy import Policy

BYTES_PER_PASS = 1 << 30
"""A pass begins no further move in a partition after so many bytes: its other actions come first."""

BILLED_BYTES_MIN = 128 << 10
"""The least size that the cheaper classes bill for an object."""

_DAY_US = 86_400_000_000
_BILLED_US_MIN = {"STANDARD_IA": 30 * _DAY_US, "ONEZONE_IA": 30 * _DAY_US, "GLACIER_IR": 90 * _DAY_US}


def class_moves(
    facts: PartitionFacts,
    policy: Policy,
    now_us: int,
    start_offset: int,
    default_class: str,
    rewritten: Collection[str] = (),
) -> Iterator[ChangeClass]:
    """Yield the moves of one pass over one partition, oldest first.

    Parameters
    ----------
    default_class
        Of objects that were not moved yet.
    rewritten
        Names of objects that this pass rewrites.
    """
    rule, left = policy.storage_class, BYTES_PER_PASS
    if rule.after is None:
        return
    for fact in facts.objects:
        source = fact.storage_class or default_class
        if source == rule.name or fact.name in rewritten or not _may_move(fact, policy, now_us, start_offset):
            continue
        if left <= 0:
            return
        left -= fact.bytes
        age = format_duration(now_us - fact.last_append_us, parts=2)
        yield ChangeClass(
            topic=facts.topic,
            partition=facts.partition,
            segment_id=None,
            base_offset=fact.base_offset,
            end_offset=fact.end_offset,
            bytes=fact.bytes,
            requests=upload_requests(fact.bytes)
            + COMMIT
            + Requests(reads=1 + fact.bytes // COPY_REQUEST_BYTES),
            reason=f"age {age} >= storage_class.after {format_duration(rule.after)}, to {rule.name}",
            name=fact.name,
            source_class=source,
            storage_class=rule.name,
        )


def _may_move(item: ObjectFact, policy: Policy, now_us: int, start_offset: int) -> bool:
    rule, kept = policy.storage_class, policy.retention
    assert rule.after is not None
    if not item.sealed or item.damaged or item.count > 1 or item.base_offset < start_offset:
        return False
    if item.bytes < BILLED_BYTES_MIN or now_us - item.last_append_us < to_us(rule.after):
        return False
    if kept.age is None:
        return True
    stamp = item.max_timestamp_us if kept.by == "timestamp" else item.last_append_us
    return stamp + to_us(kept.age) - now_us >= _BILLED_US_MIN.get(rule.name, 0)
