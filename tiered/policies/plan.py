"""Facts, rules and a time in; a plan out. Pure: no I/O, no clock.

The order within a partition is chosen for what happens when a step fails or the process dies there:

1. ``seal``: what becomes immutable now is planned further in the next pass, from new facts.
2. ``expire``: moves the start offset first, so that nothing expired is uploaded and no gap is left before
   what is offloaded.
3. ``offload`` and ``ship_tail``, oldest first: the manifest never covers a record after a gap.
4. ``evict_local``: only what the facts already showed as published, never what this plan is to publish.
5. ``compress``: it needs room that the others free, and the cold tier does not profit from it (its Parquet
   is encoded from the records).
6. ``merge``, then ``scrub``: they can wait, and take long.

``sweep`` is of no partition and comes when the others are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import reduce
from typing import Any

from ..units import approximate_size, format_duration, to_us
from .actions import Action, Compress, EvictLocal, Expire, Merge, Offload, Seal, ShipTail
from .cost import COMMIT, PRICES_AS_OF, Cost, Requests, estimate, upload_requests
from .facts import ColdObjectFact, PartitionFacts, SegmentFact, Span, StoreFacts
from .merging import merges
from .outlook import TierBytes
from .rules import Policy
from .scrubbing import scrub
from .sweeping import sweep

# Below this share of free space, offloaded segments leave before their time: a full disk stops appends.
DISK_FREE_MIN = 0.05
# Re-encoding a file that is evicted sooner than this costs more than the room it gains.
COMPRESS_PAYS_US = 3_600_000_000
# Blocks smaller than this on average were flushed by the clock, and are merged by one re-encoding.
SMALL_BLOCK_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Plan:
    """What the policies would do at ``now_us``, in the order in which it is safe.

    Attributes
    ----------
    notes
        What stands in the way of an action, one line each; empty when all is well.
    tiers
        What each tier holds before and after it; empty where that was not asked for.
    """

    now_us: int
    actions: tuple[Action, ...] = ()
    notes: tuple[str, ...] = ()
    storage_class: str = "STANDARD"
    tiers: tuple[TierBytes, ...] = ()

    COLUMNS = ("action", "topic", "partition", "offsets", "size", "requests", "reason")

    @property
    def bytes(self) -> int:
        """What all actions together read, move or free."""
        return sum(action.bytes for action in self.actions)

    @property
    def upload_bytes(self) -> int:
        """What goes to the bucket, estimated from the local files; Parquet is usually smaller."""
        return sum(item.bytes for item in self.actions if isinstance(item, (Offload, ShipTail, Merge)))

    @property
    def requests(self) -> Requests:
        """Requests to the bucket."""
        return reduce(Requests.__add__, (action.requests for action in self.actions), Requests())

    @property
    def cost(self) -> Cost:
        """What the requests cost once, and the change of the bucket a month, by list price."""
        delta = sum(action.cold_bytes_delta for action in self.actions)
        return estimate(self.requests, delta, self.storage_class)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: actions, notes and totals."""
        counts: dict[str, int] = {}
        for action in self.actions:
            counts[action.kind] = counts.get(action.kind, 0) + 1
        return {
            "now_us": self.now_us,
            "actions": [action.to_json() for action in self.actions],
            "notes": list(self.notes),
            "tiers": [asdict(item) for item in self.tiers],
            "totals": {
                "actions": counts,
                "bytes": self.bytes,
                "upload_bytes": self.upload_bytes,
                "requests": asdict(self.requests),
                "cost": {**asdict(self.cost), "prices": f"S3 {self.storage_class} {PRICES_AS_OF}"},
            },
        }

    def describe(self) -> list[tuple[str, ...]]:
        """Return one row of text an action, under `Plan.COLUMNS`."""
        return [
            (
                action.kind,
                *action.place(),
                approximate_size(action.bytes),
                str(action.requests.writes + action.requests.reads),
                action.reason,
            )
            for action in self.actions
        ]


def make_plan(
    facts: StoreFacts,
    policy_for: Callable[[str], Policy],
    now_us: int | None = None,
    *,
    sweep_every: timedelta | None = None,
) -> Plan:
    """Return what the policies ask for.

    Parameters
    ----------
    facts
        What the store gathered.
    policy_for
        The resolved policy of a topic, by its name; `Settings.policy_for`.
    now_us
        The time to plan for; default is when the facts were gathered.
    sweep_every
        How often the bucket is swept; None for never.
    """
    now = facts.now_us if now_us is None else now_us
    drafts = [_Draft(item, policy_for(item.topic), facts.has_cold, now) for item in facts.partitions]
    _relieve_disk(facts, drafts)
    return Plan(
        now_us=now,
        actions=(
            *(action for draft in drafts for action in draft.actions()),
            *sweep(facts, sweep_every, now),
        ),
        notes=tuple(note for draft in drafts for note in draft.notes),
        storage_class=facts.storage_class,
    )


class _Draft:
    """The plan of one partition while it is made."""

    def __init__(self, facts: PartitionFacts, policy: Policy, has_cold: bool, now_us: int) -> None:
        self.facts = facts
        self.policy = policy
        self.has_cold = has_cold
        self.now_us = now_us
        self.notes: list[str] = []
        self.expire = self._expire()
        self.start_offset = facts.start_offset if self.expire is None else self.expire.end_offset
        self.segments = [
            item
            for item in facts.live_segments()
            if item.end_offset > max(self.start_offset, item.base_offset)
        ]
        self.evictions = list(self._evictions())

    def actions(self) -> list[Action]:
        """Return the actions in their safe order."""
        expire = [] if self.expire is None else [self.expire]
        return [
            *self._seal(), *expire, *self._publish(), *self.evictions, *self._compress(), *self._maintain(),
        ]  # fmt: skip

    def age_us(self, item: SegmentFact | Span) -> int:
        return self.now_us - item.last_append_us

    # -- seal ------------------------------------------------------------------------------------

    def _seal(self) -> Iterator[Seal]:
        for segment in self.segments:
            if segment.sealed or not segment.newest:
                continue
            reason = self._reason_to_seal(segment)
            if reason:
                yield Seal(**_about(segment), bytes=segment.local_bytes, reason=reason)

    def _reason_to_seal(self, segment: SegmentFact) -> str | None:
        roll, offload = self.policy.roll, self.policy.offload
        if roll.bytes is not None and segment.local_bytes >= roll.bytes:
            return _size_reason(segment.local_bytes, "roll.bytes", roll.bytes)
        open_us = self.now_us - segment.created_us
        if roll.age is not None and open_us >= to_us(roll.age):
            return _age_reason(open_us, "roll.age", to_us(roll.age))
        # Sealing is what lets the last records of an idle partition expire, once nothing is left before them.
        if segment.base_offset <= self.start_offset:
            expired = self._expired_by_age(segment)
            if expired:
                return expired
        if self.has_cold and offload.tail_interval is None and offload.after is not None:
            age = self.age_us(segment)
            if age >= to_us(offload.after):
                return _age_reason(age, "offload.after", to_us(offload.after))
        return None

    # -- expire ----------------------------------------------------------------------------------

    def _expired_by_age(self, item: SegmentFact | Span) -> str | None:
        rule = self.policy.retention
        if rule.age is None:
            return None
        age = self.now_us - (item.max_timestamp_us if rule.by == "timestamp" else item.last_append_us)
        return _age_reason(age, "retention.age", to_us(rule.age)) if age >= to_us(rule.age) else None

    def _expire(self) -> Expire | None:
        """Return the one step to the new start offset; what earlier deletions left counts as well."""
        facts, limit = self.facts, self.policy.retention.bytes
        spans = facts.spans()
        kept = sum(span.bytes for span in spans)
        active = min(
            (item.base_offset for item in facts.segments if item.newest or not item.sealed), default=None
        )
        start, reason = facts.start_offset, "lies before the start offset"
        for span in spans:
            if active is not None and span.end_offset > active:
                break
            why = self._expired_by_age(span)
            if why is None and limit is not None and kept - span.bytes >= limit:
                why = _size_reason(kept, "retention.bytes", limit)
            if why is None:
                break
            start, reason, kept = span.end_offset, why, kept - span.bytes
        gone = [item for item in facts.segments if _behind(item, start) and not item.newest]
        cold = sum(item.bytes for item in facts.cold_objects if _behind(item, start))
        cold += sum(item.cold_bytes for item in gone)
        local = sum(item.local_bytes for item in gone)
        known = facts.published_start_offset
        # Readers of the bucket alone are to see what was deleted go, also where no object goes whole.
        untold = self.has_cold and known is not None and known < start
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
            requests=COMMIT if self.has_cold else Requests(),
            reason=reason,
            topic_id=facts.topic_id,
        )

    # -- offload and tail ------------------------------------------------------------------------

    def _publish(self) -> Iterator[Offload | ShipTail]:
        """Walk from the published offset towards the end; stop where a record would follow a gap."""
        rule, cursor = self.policy.offload, max(self.facts.published_offset, self.start_offset)
        if not self.has_cold or rule.after is None:
            return
        for segment in self.segments:
            if segment.in_manifest:
                cursor = max(cursor, segment.end_offset)
                continue
            if segment.base_offset > cursor:
                self.notes.append(
                    f"{self.facts.topic}/{self.facts.partition}: offsets {cursor} to {segment.base_offset} "
                    "are neither published nor local, so nothing after them is offloaded; look at the files of the partition with tiered inspect"
                )
                return
            if segment.sealed and self.age_us(segment) >= to_us(rule.after):
                yield self._offload(segment, to_us(rule.after))
                cursor = max(cursor, segment.end_offset)
                continue
            end = min(segment.end_offset, self.facts.durable_offset)
            if cursor < end:
                if not self._tail_is_due():
                    return
                yield self._ship_tail(segment, cursor, end)
                cursor = end
            if cursor < segment.end_offset:
                return

    def _tail_is_due(self) -> bool:
        interval = self.policy.offload.tail_interval
        return interval is not None and self.now_us - self.facts.tail_shipped_us >= to_us(interval)

    def _offload(self, segment: SegmentFact, after_us: int) -> Offload:
        replaced = sum(
            item.bytes
            for item in self.facts.cold_objects
            if item.tail and item.segment_ids == (segment.segment_id,)
        )
        return Offload(
            **_about(segment),
            bytes=segment.local_bytes,
            cold_bytes_delta=segment.local_bytes - replaced,
            requests=upload_requests(segment.local_bytes) + COMMIT,
            reason=_age_reason(self.age_us(segment), "offload.after", after_us),
        )

    def _ship_tail(self, segment: SegmentFact, base: int, end: int) -> ShipTail:
        size = segment.local_bytes * (end - base) // (segment.end_offset - segment.base_offset)
        return ShipTail(
            **{**_about(segment), "base_offset": base, "end_offset": end},
            bytes=size,
            cold_bytes_delta=size,
            requests=upload_requests(size) + COMMIT,
            reason=f"{end - base} durable records are not in the bucket",
        )

    # -- evict -----------------------------------------------------------------------------------

    def evictable(self) -> Iterator[SegmentFact]:
        """Yield what may be evicted (promise P5), oldest first; what stays local stays contiguous."""
        for segment in self.segments:
            if not (self.has_cold and segment.sealed and not segment.newest and segment.in_manifest):
                return
            if segment.local_bytes:
                yield segment

    def _evictions(self) -> Iterator[EvictLocal]:
        rule = self.policy.local_retention
        local = sum(item.local_bytes for item in self.segments)
        for segment in self.evictable():
            age = self.age_us(segment)
            if rule.age is not None and age >= to_us(rule.age):
                reason = _age_reason(age, "local_retention.age", to_us(rule.age))
            elif rule.bytes is not None and local > rule.bytes:
                reason = _size_reason(local, "local_retention.bytes", rule.bytes)
            else:
                return
            yield _evict(segment, reason)
            local -= segment.local_bytes

    # -- compress --------------------------------------------------------------------------------

    def _compress(self) -> Iterator[Compress]:
        rule = self.policy.compress
        if rule.after is None:
            return
        evicted = {item.segment_id for item in self.evictions}
        for segment in self.segments:
            if segment.newest or not segment.sealed or not segment.local_bytes:
                continue
            age = self.age_us(segment)
            if age < to_us(rule.after) or segment.segment_id in evicted or self._leaves_soon(segment):
                continue
            if segment.codec != rule.codec:
                reason = f"codec {segment.codec}, compress.codec is {rule.codec}"
            elif has_small_blocks(segment):
                reason = f"{segment.block_count} small blocks"
            else:
                continue
            yield Compress(
                **_about(segment),
                bytes=segment.local_bytes,
                codec=rule.codec,
                level=rule.level,
                reason=f"{reason}; {_age_reason(age, 'compress.after', to_us(rule.after))}",
            )

    def _leaves_soon(self, segment: SegmentFact) -> bool:
        limit = self.policy.local_retention.age
        will_be_cold = self.has_cold and (segment.in_manifest or self.policy.offload.after is not None)
        return will_be_cold and limit is not None and to_us(limit) - self.age_us(segment) < COMPRESS_PAYS_US

    # -- merge and scrub -------------------------------------------------------------------------

    def _maintain(self) -> Iterator[Action]:
        if not self.has_cold:
            return
        yield from merges(self.facts, self.policy, self.now_us, self.start_offset)
        due = scrub(self.facts, self.policy, self.now_us, self.start_offset)
        if due is not None:
            yield due


def _relieve_disk(facts: StoreFacts, drafts: list[_Draft]) -> None:
    """Evict more, the oldest of all partitions first, while the disk would stay nearly full."""
    floor = int(facts.disk_total_bytes * DISK_FREE_MIN)
    free = facts.disk_free_bytes
    for draft in drafts:
        start = draft.start_offset
        free += sum(item.local_bytes for item in draft.facts.segments if _behind(item, start))
        free += sum(item.bytes for item in draft.evictions)
    if free >= floor:
        return
    candidates: list[tuple[int, int, SegmentFact]] = []
    for index, draft in enumerate(drafts):
        latest = 0
        for segment in list(draft.evictable())[len(draft.evictions) :]:
            latest = max(latest, segment.last_append_us)  # keeps offset order within a partition
            candidates.append((latest, index, segment))
    for _, index, segment in sorted(candidates, key=lambda item: item[:2]):
        if free >= floor:
            return
        share = 100 * max(facts.disk_free_bytes, 0) // facts.disk_total_bytes
        drafts[index].evictions.append(_evict(segment, f"{share}% of the disk is free"))
        free += segment.local_bytes


def _evict(segment: SegmentFact, reason: str) -> EvictLocal:
    return EvictLocal(**_about(segment), bytes=segment.local_bytes, reason=reason)


def _about(segment: SegmentFact) -> dict[str, Any]:
    return {
        "topic": segment.topic,
        "partition": segment.partition,
        "segment_id": segment.segment_id,
        "base_offset": segment.base_offset,
        "end_offset": segment.end_offset,
    }


def _behind(item: SegmentFact | ColdObjectFact, start_offset: int) -> bool:
    return item.base_offset < item.end_offset <= start_offset


def has_small_blocks(segment: SegmentFact) -> bool:
    """Whether merging pays; only for the file as appended, so that no result is encoded again and again."""
    small = segment.raw_bytes < segment.block_count * SMALL_BLOCK_BYTES
    return segment.generation == 0 and segment.block_count > 1 and small


def _age_reason(age_us: int, rule: str, limit_us: int) -> str:
    return f"age {format_duration(age_us, parts=2)} >= {rule} {format_duration(limit_us)}"


def _size_reason(size: int, rule: str, limit: int) -> str:
    return f"size {approximate_size(size)}, {rule} is {approximate_size(limit)}"
