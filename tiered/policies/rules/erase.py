"""The rule of erasures: which objects are checked for the records of open erasures, and written again without them. Pure.

An erasure seals what it concerns, offloads it, and only then changes objects. So no local file of which the bucket lacks a
record is ever deleted for it (promise P5), and shipped tails have been replaced by whole objects, unless their segment was
lost with its disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..actions import Erase
from ..cost import rewrite_requests
from ..facts import ObjectFact, SegmentFact
from .case import PartitionCase, erasure_reason

RANGE_BYTES = 1 << 30
"""An action covers objects of about this many bytes; what it has done stays done."""


def erasures(case: PartitionCase, segments: Sequence[SegmentFact], start_offset: int) -> Iterator[Erase]:
    """Yield the checks of a partition's objects, in offset order, once all that open erasures concern is published.

    Parameters
    ----------
    start_offset
        The start offset of the log after this plan's expiry.
    """
    facts = case.facts
    due = [item for item in facts.erasures if item.checked_offset < item.horizon]
    if not case.has_cold or not due:
        return
    horizon = max(item.horizon for item in due)
    # The log may begin in the middle of an object.
    checked = max(start_offset, min(item.checked_offset for item in due))
    if facts.published_offset < horizon or (facts.published_start_offset or 0) < start_offset:
        return
    if any(item.base_offset < horizon and not item.in_manifest for item in segments):
        return
    objects = [item for item in facts.objects if item.end_offset > checked and item.base_offset < horizon]
    reason = erasure_reason(due[0]) if len(due) == 1 else f"{len(due)} erasures remove records"
    run: list[ObjectFact] = []
    for item in objects:
        run.append(item)
        if sum(each.bytes for each in run) >= RANGE_BYTES:
            yield _erase(case, run, reason)
            run = []
    if run:
        yield _erase(case, run, reason)


def _erase(case: PartitionCase, objects: Sequence[ObjectFact], reason: str) -> Erase:
    size = sum(item.bytes for item in objects)
    count = sum(item.count for item in objects)
    return Erase(
        topic=case.facts.topic,
        partition=case.facts.partition,
        segment_id=None,
        base_offset=objects[0].base_offset,
        end_offset=objects[-1].end_offset,
        bytes=size,
        requests=rewrite_requests(size, count),
        reason=reason,
    )
