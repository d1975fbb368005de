"""`PartitionCase`: the facts, the policy and the time that a rule gets for one partition; and the texts of reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...base.units import approximate_size, format_duration, to_us
from ..facts import ColdObjectFact, ErasureFact, PartitionFacts, SegmentFact, Span, StoreFacts
from ..policy import Policy

NOT_WAITING = -(1 << 80)
OUTDATED = "it has records that were erased or compacted"
"""Why a file that is older than its object does not stay."""


@dataclass(frozen=True, slots=True)
class PartitionCase:
    """One partition, its policy and its store at the time that is planned for.

    Attributes
    ----------
    free_bytes, floor_bytes
        What the disk has free, and what is to stay free.
    """

    facts: PartitionFacts
    policy: Policy
    has_cold: bool
    now_us: int
    free_bytes: int
    floor_bytes: int

    @classmethod
    def of(cls, facts: PartitionFacts, policy: Policy, store: StoreFacts, now_us: int) -> PartitionCase:
        """Return the case of a partition of a store."""
        floor = floor_bytes(policy, store.disk_total_bytes)
        return cls(facts, policy, store.has_cold, now_us, store.disk_free_bytes, floor)

    @property
    def is_short(self) -> bool:
        """Whether less of the disk is free than is to stay free."""
        return self.free_bytes < self.floor_bytes

    def age_us(self, item: SegmentFact | Span) -> int:
        """Return how long ago the last record was appended."""
        return self.now_us - item.last_append_us

    def short_reason(self) -> str:
        """Return how short the disk is, as a reason."""
        limit = approximate_size(self.floor_bytes)
        return f"{approximate_size(max(0, self.free_bytes))} of disk free < local_retention.free_disk {limit}"

    def expired_by_age(self, item: SegmentFact | Span) -> str | None:
        """Return why retention takes records for their age; None where it does not, consumers aside."""
        rule = self.policy.retention
        if rule.age is None:
            return None
        age = self.now_us - retention_stamp_us(self.policy, item)
        return age_reason(age, "retention.age", to_us(rule.age)) if age >= to_us(rule.age) else None

    def waits(self, item: SegmentFact | Span) -> bool:
        """Whether retention leaves records that are due, because a consumer has not read them."""
        return self.now_us < unread_until_us(self.facts, self.policy, item)


def erasure_reason(erasure: ErasureFact) -> str:
    """Return an open erasure as a reason."""
    return f"erasure {erasure.number} removes records before offset {erasure.horizon}"


def floor_bytes(policy: Policy, disk_total_bytes: int) -> int:
    """Return how much of the disk is to stay free; 0 where its size is not known, or there is no such rule."""
    floor = policy.local_retention.free_disk
    return 0 if floor is None or not disk_total_bytes else floor.of(disk_total_bytes)


def retention_stamp_us(policy: Policy, item: SegmentFact | Span) -> int:
    """Return the time from which retention counts the age of records."""
    return item.max_timestamp_us if policy.retention.by == "timestamp" else item.last_append_us


def unread_by(facts: PartitionFacts, policy: Policy, end_offset: int) -> list[str]:
    """Return the consumers of ``retention.unless_behind`` that have not read all records before `end_offset`."""
    positions = {item.name: item.offset for item in facts.consumers or ()}
    return [name for name in policy.retention.unless_behind if positions.get(name, -1) < end_offset]


def unread_until_us(facts: PartitionFacts, policy: Policy, item: SegmentFact | Span) -> int:
    """Return until when retention waits for consumers that have not read these records; `NOT_WAITING` if for none."""
    limit = policy.retention.unless_behind_max
    if limit is None or not unread_by(facts, policy, item.end_offset):
        return NOT_WAITING
    return retention_stamp_us(policy, item) + to_us(limit)


def segment_fields(segment: SegmentFact) -> dict[str, Any]:
    """Return what an action says of the segment that it is about."""
    return {
        "topic": segment.topic,
        "partition": segment.partition,
        "segment_id": segment.segment_id,
        "base_offset": segment.base_offset,
        "end_offset": segment.end_offset,
    }


def is_behind(item: SegmentFact | ColdObjectFact, start_offset: int) -> bool:
    """Return whether an item holds nothing at or after an offset."""
    return item.base_offset < item.end_offset <= start_offset


def age_reason(age_us: int, rule: str, limit_us: int) -> str:
    """Return a reason of a rule on age."""
    return f"age {format_duration(age_us, parts=2)} >= {rule} {format_duration(limit_us)}"


def size_reason(size: int, rule: str, limit: int) -> str:
    """Return a reason of a rule on size."""
    return f"size {approximate_size(size)}, {rule} is {approximate_size(limit)}"
