"""The rule of retention: the offset up to which the log of a partition expires. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ...base.units import format_duration
from ..actions import Expire
from ..cost import COMMIT, Requests
from ..facts import Span
from .case import PartitionCase, is_behind, size_reason, unread_by


def expiry(case: PartitionCase) -> Expire | None:
    """Return the one step to the new start offset; leftovers of earlier deletions ask for it as well."""
    facts = case.facts
    start, reason = facts.start_offset, "lies before the start offset"
    for span, why in _due(case):
        if case.waits(span):
            break
        unread = unread_by(facts, case.policy, span.end_offset)
        start = span.end_offset
        reason = f"{why}, though {_names(unread)} not read it" if unread else why
    gone = [item for item in facts.segments if is_behind(item, start) and not item.newest]
    cold = sum(item.bytes for item in facts.cold_objects if is_behind(item, start))
    cold += sum(item.cold_bytes for item in gone)
    local = sum(item.local_bytes for item in gone)
    published = facts.published_start_offset
    # A restore of a bucket without a manifest would give the offsets again.
    begins = case.has_cold and published is None and start > 0 and case.policy.offload.after is not None
    # The bucket must learn the start offset even if no object goes whole: its readers must not see deleted records.
    unpublished = begins or (case.has_cold and published is not None and published < start)
    if start == facts.start_offset and not (local or cold or unpublished):
        return None
    return Expire(
        topic=facts.topic,
        partition=facts.partition,
        segment_id=None,
        base_offset=facts.start_offset,
        end_offset=start,
        bytes=local + cold,
        cold_bytes_delta=-cold,
        requests=COMMIT if case.has_cold else Requests(),
        reason=reason,
        topic_id=facts.topic_id,
        begins_manifest=begins,
    )


def waiting(case: PartitionCase) -> str | None:
    """Return which records are due and stay for consumers that have not read them; None if there are none."""
    if not case.policy.retention.unless_behind:
        return None
    held: list[Span] = []
    for span, _ in _due(case):
        if held or case.waits(span):
            held.append(span)
    if not held:
        return None
    facts, first, limit = case.facts, held[0], case.policy.retention.unless_behind_max
    assert limit is not None
    where = f"{facts.topic}/{facts.partition}: [{first.base_offset}, {held[-1].end_offset}) expire after"
    until = f"(retention.unless_behind, at most {format_duration(limit)})"
    if facts.consumers is None:
        return f"{where} {format_duration(limit)}: the positions of consumers cannot be read {until}"
    positions = {item.name: item.offset for item in facts.consumers}
    states = [
        f"consumer {name} is at {positions[name]}"
        if name in positions
        else f"no consumer {name} has a position"
        for name in unread_by(facts, case.policy, first.end_offset)
    ]
    return f"{where} they are read: {', '.join(states)} {until}"


def _due(case: PartitionCase) -> Iterator[tuple[Span, str]]:
    """Yield the ranges that are due by age or size, oldest first, with the reason; consumers aside."""
    facts, limit = case.facts, case.policy.retention.bytes
    spans = facts.spans()
    left_bytes = sum(span.bytes for span in spans)
    active = min(
        (item.base_offset for item in facts.segments if item.newest or not item.sealed), default=None
    )
    for span in spans:
        if active is not None and span.end_offset > active:
            return
        why = case.expired_by_age(span)
        if why is None and limit is not None and left_bytes - span.bytes >= limit:
            why = size_reason(left_bytes, "retention.bytes", limit)
        if why is None:
            return
        left_bytes -= span.bytes
        yield span, why


def _names(names: list[str]) -> str:
    return f"{', '.join(names)} {'has' if len(names) == 1 else 'have'}"
