"""The rule of sweeps: when the whole bucket is swept. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from ...base.units import format_duration, to_us
from ..actions import WHOLE_STORE, Sweep
from ..cost import Requests
from ..facts import StoreFacts

LISTED_MAX = 1000
"""Objects in one answer to a listing."""


def sweep(facts: StoreFacts, every: timedelta | None, now_us: int) -> Iterator[Sweep]:
    """Yield a sweep if one is due; what it will delete is known once it has listed the bucket."""
    if every is None or facts.swept_us is None or not facts.has_cold:
        return
    age, limit = now_us - facts.swept_us, to_us(every)
    # A clock that was once far ahead must not put the next sweep off until then.
    if -limit < age < limit:
        return
    topic, partition = WHOLE_STORE
    objects = sum(item.count for partition in facts.partitions for item in partition.objects)
    # For each partition: head, date of the head, trimming; one listing a thousand objects; the clock's probe.
    listings = len(facts.partitions) + objects // LISTED_MAX + 1
    yield Sweep(
        topic=topic,
        partition=partition,
        segment_id=None,
        base_offset=0,
        end_offset=0,
        bytes=0,
        planned_us=now_us,
        requests=Requests(writes=listings + 2, reads=3 * len(facts.partitions) + 1),
        reason=f"age {format_duration(abs(age), parts=2)} >= sweep.every {format_duration(limit)}",
    )
