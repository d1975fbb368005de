"""Up to where retention deletes the log of a partition."""

from __future__ import annotations

from ..actions import Expire
from ..cost import COMMIT, Requests
from .case import PartitionCase, is_behind, size_reason


def expiry(case: PartitionCase) -> Expire | None:
    """Return the one step to the new start offset; what earlier deletions left counts as well."""
    facts, limit = case.facts, case.policy.retention.bytes
    spans = facts.spans()
    kept = sum(span.bytes for span in spans)
    active = min(
        (item.base_offset for item in facts.segments if item.newest or not item.sealed), default=None
    )
    start, reason = facts.start_offset, "lies before the start offset"
    for span in spans:
        if active is not None and span.end_offset > active:
            break
        why = case.expired_by_age(span)
        if why is None and limit is not None and kept - span.bytes >= limit:
            why = size_reason(kept, "retention.bytes", limit)
        if why is None:
            break
        start, reason, kept = span.end_offset, why, kept - span.bytes
    gone = [item for item in facts.segments if is_behind(item, start) and not item.newest]
    cold = sum(item.bytes for item in facts.cold_objects if is_behind(item, start))
    cold += sum(item.cold_bytes for item in gone)
    local = sum(item.local_bytes for item in gone)
    known = facts.published_start_offset
    # A restore of a bucket without a manifest would give the offsets again.
    begins = case.has_cold and known is None and start > 0 and case.policy.offload.after is not None
    # Readers of the bucket alone are to see what was deleted go, also where no object goes whole.
    untold = begins or (case.has_cold and known is not None and known < start)
    if start == facts.start_offset and not (local or cold or untold):
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
