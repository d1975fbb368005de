"""The rule of cuts: whether the first object of the log is rewritten without the records that were deleted. Pure.

Retention deletes whole objects, and ``delete_before`` any offset. A cut leaves an object that begins where the log does, so
the rule is at rest until the next deletion. If it waits for a share `s` of deleted records, all cuts of an object together
write at most ``(1 - s) / s`` times its bytes.
"""

from __future__ import annotations

from ..actions import Cut
from ..cost import COMMIT, ROWS_REQUEST_BYTES, Requests, upload_requests
from ..facts import PartitionFacts
from ..policy import Policy


def cut(facts: PartitionFacts, policy: Policy, start_offset: int) -> Cut | None:
    """Return the cut of the object in which the log begins, if it is due.

    Parameters
    ----------
    start_offset
        The start offset of the log after this plan's expiry.
    """
    share, start = policy.cut_share, start_offset
    # The manifest has to say first where the log begins: before that, the records count as live there.
    if share is None or facts.published_start_offset != start:
        return None
    first = next((first for first in facts.objects if first.base_offset < start < first.end_offset), None)
    # What was moved to a cheaper class is billed there for a least time.
    if first is None or first.count > 1 or not first.sealed or first.damaged or first.storage_class:
        return None
    # A local file is evicted, compared and repaired by an object that has all of its offsets (promise P5).
    if any(segment.base_offset < start < segment.end_offset for segment in facts.segments):
        return None
    deleted = (start - first.base_offset) / (first.end_offset - first.base_offset)
    if deleted < share:
        return None
    live = first.bytes - int(first.bytes * deleted)
    # The live part is read to be written, all of it to be compared, and the result once.
    reads = 6 + (2 * live + first.bytes) // ROWS_REQUEST_BYTES
    return Cut(
        topic=facts.topic,
        partition=facts.partition,
        segment_id=None,
        base_offset=start,
        end_offset=first.end_offset,
        bytes=live,
        cold_bytes_delta=live - first.bytes,
        requests=upload_requests(live) + COMMIT + Requests(reads=reads),
        reason=f"{deleted:.0%} of the object is deleted >= cut.deleted {share:.0%}",
        names=(first.name,),
    )
