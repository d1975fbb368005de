"""The rule of merges: which objects of a partition are merged. Pure; repeated plans end, because no merge undoes another.

Objects may be merged where they lie end to end and are sealed, small (less than half the target), old enough,
and alike in schema, lineage and time until retention takes them. A *run* of such neighbours is cut into groups:

- From the left, as many as fit the target, if they fill half of it: the result is never merged again.
- Of what is left, neighbours that together are `GROWTH` times the largest of them, as in a size-tiered LSM tree.

So a record is rewritten once to fill an object, and before that at most as often as its object can grow by
`GROWTH`: with 1 MiB objects and a target of 256 MiB, at most five times in all. Every merge leaves fewer objects
than there were, so plans come to an end, and none undoes another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...base.units import approximate_size, to_us
from ..actions import Merge
from ..cost import COMMIT, ROWS_REQUEST_BYTES, Requests, upload_requests
from ..facts import ObjectFact, PartitionFacts
from ..policy import Policy

GROWTH = 4
SEGMENTS_MAX = 256
"""The most segments of one object, whose footer has the facts of each."""

TARGETS_PER_PASS = 4
"""A pass begins no further merge in a partition after so many times the target: its other actions come first."""

# Objects that expire soon are not worth a merge, and merged records expire together. So an object must have a quarter of
# its time before it, and the objects of one merge lie within a tenth of that time.
_LEFT = 4
_SPREAD = 10


@dataclass(frozen=True, slots=True)
class _Limits:
    target_bytes: int
    segments: int = SEGMENTS_MAX

    def full(self, group: Sequence[ObjectFact]) -> bool:
        return 2 * _bytes(group) >= self.target_bytes or 2 * _segments(group) >= self.segments

    def fits(self, group: Sequence[ObjectFact], more: ObjectFact) -> bool:
        return (
            _bytes(group) + more.bytes <= self.target_bytes
            and _segments(group) + more.segment_count <= self.segments
        )


def merges(facts: PartitionFacts, policy: Policy, now_us: int, start_offset: int) -> Iterator[Merge]:
    """Yield the merges of one pass over one partition, oldest first.

    Parameters
    ----------
    start_offset
        The start offset of the log after this plan's expiry.
    """
    rule, kept = policy.merge, policy.retention
    if rule.after is None or rule.target_bytes is None:
        return
    target = rule.target_bytes if kept.bytes is None else min(rule.target_bytes, kept.bytes // _SPREAD)
    limits, left = _Limits(target), TARGETS_PER_PASS * target
    for run in _runs(facts.objects, policy, now_us, start_offset, limits):
        for group in groups(run, limits):
            if left <= 0:
                return
            left -= _bytes(group)
            yield _merge(facts, group)


def groups(run: Sequence[ObjectFact], limits: _Limits) -> Iterator[Sequence[ObjectFact]]:
    """Cut a run of small neighbours into the groups that are to become one object each."""
    group: list[ObjectFact] = []
    for item in run:
        if group and not limits.fits(group, item):
            # Each object is less than half the target, so a group that the next one does not fit fills half of it.
            yield group
            group = []
        group.append(item)
    if len(group) > 1 and limits.full(group):
        yield group
    else:
        yield from _growing(group)


def _growing(run: Sequence[ObjectFact]) -> Iterator[Sequence[ObjectFact]]:
    """Yield the longest groups of at least `GROWTH` times their largest object; a smaller group is divided at that object."""
    if len(run) < 2:
        return
    largest = max(range(len(run)), key=lambda i: run[i].bytes)
    if _bytes(run) >= GROWTH * run[largest].bytes:
        yield run
        return
    yield from _growing(run[:largest])
    yield from _growing(run[largest + 1 :])


def _runs(
    objects: Sequence[ObjectFact], policy: Policy, now_us: int, start_offset: int, limits: _Limits
) -> Iterator[Sequence[ObjectFact]]:
    live = [fact for fact in objects if fact.base_offset >= start_offset]
    expiring = _expiring_by_bytes(live, policy.retention.bytes)
    run: list[ObjectFact] = []
    for fact in live:
        usable = (
            fact.count == 1
            and fact.base_offset >= expiring
            and _is_ripe(fact, policy, now_us)
            and not limits.full([fact])
        )
        if run and not (usable and _alike(run[-1], fact, policy)):
            yield run
            run = []
        if usable:
            run.append(fact)
    yield run


def _is_ripe(item: ObjectFact, policy: Policy, now_us: int) -> bool:
    after, kept = policy.merge.after, policy.retention
    assert after is not None
    # What was moved to a cheaper class is billed there for a least time: to merge it would pay twice.
    if not item.sealed or item.damaged or item.storage_class or now_us - item.last_append_us < to_us(after):
        return False
    return kept.age is None or _LEFT * (now_us - _stamp(item, policy)) < (_LEFT - 1) * to_us(kept.age)


def _alike(left: ObjectFact, right: ObjectFact, policy: Policy) -> bool:
    alike = (left.end_offset, left.schema_id, left.lineage) == (
        right.base_offset, right.schema_id, right.lineage,
    )  # fmt: skip
    if policy.retention.age is None:
        return alike
    # Fixed steps of time and not distances, so that what was joined does not keep others out.
    step = max(1, to_us(policy.retention.age) // _SPREAD)
    return alike and _stamp(left, policy) // step == _stamp(right, policy) // step


def _stamp(item: ObjectFact, policy: Policy) -> int:
    return item.max_timestamp_us if policy.retention.by == "timestamp" else item.last_append_us


def _expiring_by_bytes(objects: Sequence[ObjectFact], limit: int | None) -> int:
    """Return the offset below which retention by bytes takes objects before a quarter of its bytes is appended."""
    newer = 0
    for item in reversed(objects):
        newer += item.bytes
        if limit is not None and _LEFT * newer >= (_LEFT - 1) * limit:
            return item.end_offset
    return 0


def _merge(facts: PartitionFacts, group: Sequence[ObjectFact]) -> Merge:
    assert all(left.end_offset == right.base_offset for left, right in pairwise(group))
    size = _bytes(group)
    # Read to be written, read to be compared, and the result is read once.
    reads = sum(2 * (2 + item.bytes // ROWS_REQUEST_BYTES) for item in group) + 2 + size // ROWS_REQUEST_BYTES
    return Merge(
        topic=facts.topic,
        partition=facts.partition,
        segment_id=None,
        base_offset=group[0].base_offset,
        end_offset=group[-1].end_offset,
        bytes=size,
        requests=upload_requests(size) + COMMIT + Requests(reads=reads),
        reason=f"{len(group)} objects of {approximate_size(size // len(group))} on average",
        names=tuple(item.name for item in group),
    )


def _bytes(group: Sequence[ObjectFact]) -> int:
    return sum(item.bytes for item in group)


def _segments(group: Sequence[ObjectFact]) -> int:
    return sum(item.segment_count for item in group)
