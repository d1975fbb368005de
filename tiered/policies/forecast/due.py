"""The times from which the rules ask for their actions, while the facts stay the same. Pure.

The rules for seals, expiry, offloads, tails, eviction, compression, merges and storage classes are solved for the time here.
Neither the log in the bucket nor the local log may have a gap, so an action can wait for that of a neighbour: it is due at
the later of both times, unless the neighbour expires before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from ...base.units import approximate_size, format_duration, to_us
from ..actions import ChangeClass, Compress, EvictLocal, Expire, Merge, Offload, Seal, ShipTail
from ..facts import PartitionFacts, SegmentFact
from ..policy import Policy
from ..rules.case import retention_stamp_us, unread_until_us
from ..rules.change_class import class_moves
from ..rules.compress import COMPRESS_PAYS_US, has_small_blocks
from ..rules.merge import merges

ALWAYS = -(1 << 80)
NEVER = 1 << 80
# Merges are found by trying the times at which they may change; each try looks at all objects, at most so many in all.
_TRIED_OBJECTS_MAX = 200_000


class Due(NamedTuple):
    """An action, from when on it is asked for (microseconds since the epoch), and by which rule."""

    due_us: int
    kind: str
    rule: str


class Forecast:
    """What the rules will ask for, for one partition.

    Parameters
    ----------
    now_us
        The forecast begins here.
    """

    def __init__(self, facts: PartitionFacts, policy: Policy, has_cold: bool, now_us: int) -> None:
        self._facts = facts
        self._policy = policy
        self._has_cold = has_cold
        self._now_us = now_us
        self._ends: list[int] = []
        self._expiry: list[tuple[int, str]] = []
        self._check_retention()
        self.segments = [
            item
            for item in facts.live_segments()
            if item.end_offset > max(facts.start_offset, item.base_offset)
        ]

    def by_segment(self) -> list[tuple[SegmentFact, list[Due]]]:
        """Return the actions to come on each live segment, in offset order, without expiry, merges and moves."""
        published, evicted = self._published(), self._evicted()
        forecasts = []
        for segment, publish, evict in zip(self.segments, published, evicted, strict=True):
            gone = self.expires(segment.end_offset).due_us
            dues = [*self._sealed(segment), *publish, *evict, *self._compressed(segment, evict)]
            forecasts.append((segment, [item for item in dues if item.due_us < min(gone, NEVER)]))
        return forecasts

    def expires(self, end_offset: int) -> Due:
        """Return from when on everything before `end_offset` is deleted; `NEVER` where no rule says so."""
        due_us, rule = self._reached(end_offset)
        return Due(due_us, Expire.kind, rule)

    def merged(self) -> Iterator[tuple[Due, Merge]]:
        """Yield merges to come, each range of offsets at the first time at which it is asked for.

        Only so many times are tried; late merges of a long log are left out.
        """
        rule, objects = self._policy.merge, self._facts.objects
        if not self._has_cold or rule.after is None or not objects:
            return
        text = f"merge.after {format_duration(rule.after)}"
        tries = max(8, _TRIED_OBJECTS_MAX // len(objects))
        for due_us in self._merge_times()[:tries]:
            for action in merges(self._facts, self._policy, due_us, self._start_at(due_us)):
                yield Due(due_us, Merge.kind, text), action

    def moved(self, default_class: str | None) -> Iterator[tuple[Due, ChangeClass]]:
        """Yield moves into another storage class to come, as `merged` does; with None there are no classes."""
        rule, objects = self._policy.storage_class, self._facts.objects
        if not self._has_cold or rule.after is None or default_class is None or not objects:
            return
        after, text = to_us(rule.after), f"storage_class.after {format_duration(rule.after)}"
        times = {due for due, _ in self._expiry} | {item.last_append_us + after for item in objects}
        times |= set(self._merge_times()) if self._policy.merge.after is not None else set()
        tries = max(8, _TRIED_OBJECTS_MAX // len(objects))
        for due_us in sorted(time for time in times if self._now_us < time < NEVER)[:tries]:
            start = self._start_at(due_us)
            merging = {n for act in merges(self._facts, self._policy, due_us, start) for n in act.names}
            moves = class_moves(self._facts, self._policy, due_us, start, default_class, merging)
            yield from ((Due(due_us, ChangeClass.kind, text), action) for action in moves)

    # -- seal ------------------------------------------------------------------------------------

    def _sealed(self, segment: SegmentFact) -> Iterator[Due]:
        if segment.sealed or not segment.newest:
            return
        roll, offload, retention = self._policy.roll, self._policy.offload, self._policy.retention
        dues = []
        if roll.bytes is not None and segment.local_bytes >= roll.bytes:
            dues.append(Due(ALWAYS, Seal.kind, f"roll.bytes {approximate_size(roll.bytes)}"))
        if roll.age is not None:
            due_us = segment.created_us + to_us(roll.age)
            dues.append(Due(due_us, Seal.kind, f"roll.age {format_duration(roll.age)}"))
        if retention.age is not None:
            due_us = max(
                retention_stamp_us(self._policy, segment) + to_us(retention.age),
                unread_until_us(self._facts, self._policy, segment),
                self._reached(segment.base_offset)[0],
            )
            dues.append(Due(due_us, Seal.kind, f"retention.age {format_duration(retention.age)}"))
        if self._has_cold and offload.tail_interval is None and offload.after is not None:
            due_us = segment.last_append_us + to_us(offload.after)
            dues.append(Due(due_us, Seal.kind, f"offload.after {format_duration(offload.after)}"))
        if dues:
            yield min(dues)

    # -- expire ----------------------------------------------------------------------------------

    def _check_retention(self) -> None:
        """Compute for each run of offsets from when on all of it is before the start offset."""
        facts, rule = self._facts, self._policy.retention
        spans = facts.spans()
        left_bytes = sum(span.bytes for span in spans)
        active = min(
            (item.base_offset for item in facts.segments if item.newest or not item.sealed), default=NEVER
        )
        latest = ALWAYS, ""
        for span in spans:
            if span.end_offset > active:
                break
            due = NEVER, ""
            if rule.age is not None:
                stamp = retention_stamp_us(self._policy, span)
                due = stamp + to_us(rule.age), f"retention.age {format_duration(rule.age)}"
            if rule.bytes is not None and left_bytes - span.bytes >= rule.bytes:
                due = ALWAYS, f"retention.bytes {approximate_size(rule.bytes)}"
            unread_us = unread_until_us(facts, self._policy, span)
            if due[0] < unread_us and rule.unless_behind_max is not None:
                due = unread_us, f"retention.unless_behind_max {format_duration(rule.unless_behind_max)}"
            latest = max(latest, due, key=lambda item: item[0])
            left_bytes -= span.bytes
            self._ends.append(span.end_offset)
            self._expiry.append(latest)

    def _reached(self, offset: int) -> tuple[int, str]:
        """Return from when on the start offset is `offset` or more, and by which rule."""
        if offset <= self._facts.start_offset:
            return ALWAYS, ""
        index = bisect_left(self._ends, offset)
        return self._expiry[index] if index < len(self._ends) else (NEVER, "")

    def _start_at(self, now_us: int) -> int:
        """Return the start offset once what is due at `now_us` has expired."""
        done = [end for end, (due, _) in zip(self._ends, self._expiry, strict=True) if due <= now_us]
        return max([self._facts.start_offset, *done])

    # -- offload and tail ------------------------------------------------------------------------

    def _published(self) -> list[list[Due]]:
        facts, rule = self._facts, self._policy.offload
        if not self._has_cold or rule.after is None:
            return [[] for _ in self.segments]
        after, interval = to_us(rule.after), rule.tail_interval
        tail_us = NEVER if interval is None else facts.tail_shipped_us + to_us(interval)
        cursor, reached = max(facts.published_offset, facts.start_offset), ALWAYS
        by_segment: list[list[Due]] = []
        sizes = [item.local_bytes if item.sealed and not item.in_manifest else 0 for item in self.segments]
        rest = list(accumulate(reversed(sizes)))[::-1]
        for segment, waiting in zip(self.segments, rest, strict=True):
            dues: list[Due] = []
            by_segment.append(dues)
            base, end = segment.base_offset, segment.end_offset
            if not segment.in_manifest:
                gate = ALWAYS if base <= cursor else self._reached(base)[0]
                ripe, text = NEVER, f"offload.after {format_duration(rule.after)}"
                if segment.sealed:
                    ripe = segment.last_append_us + after
                    if rule.bytes is not None and waiting > rule.bytes:
                        ripe, text = ALWAYS, f"offload.bytes {approximate_size(rule.bytes)}"
                durable, low = min(end, facts.durable_offset), max(cursor, base)
                at = max(gate, reached)
                dues.append(Due(max(ripe, at), Offload.kind, text))
                if interval is not None and low < durable and max(tail_us, at) < ripe:
                    text = f"offload.tail_interval {format_duration(interval)}"
                    dues.append(Due(max(tail_us, at), ShipTail.kind, text))
                passed = ALWAYS if low >= end else min(ripe, tail_us) if durable >= end else ripe
                reached = max(reached, min(max(gate, passed), self._reached(end)[0]))
            cursor = max(cursor, end)
        return by_segment

    # -- evict and compress ----------------------------------------------------------------------

    def is_evictable(self, segment: SegmentFact) -> bool:
        """Whether a segment may be evicted, regardless of its neighbours and of the time (promise P5)."""
        here = self._has_cold and segment.sealed and not segment.newest and segment.in_manifest
        return here and not self._policy.pin.topic and not self._facts.is_damaged_in_bucket(segment)

    def pinned_until(self, segment: SegmentFact) -> int:
        """Return until when its age pins it."""
        age = self._policy.pin.age
        return ALWAYS if age is None else segment.last_append_us + to_us(age)

    def _evicted(self) -> list[list[Due]]:
        rule = self._policy.local_retention
        sizes = [item.local_bytes for item in self.segments]
        rest = list(accumulate(reversed(sizes)))[::-1]
        reached = ALWAYS
        by_segment: list[list[Due]] = []
        for segment, local in zip(self.segments, rest, strict=True):
            dues: list[Due] = []
            by_segment.append(dues)
            passed = NEVER
            if self.is_evictable(segment):
                passed, text = NEVER, ""
                if rule.age is not None:
                    passed = segment.last_append_us + to_us(rule.age)
                    text = f"local_retention.age {format_duration(rule.age)}"
                if rule.bytes is not None and local > rule.bytes:
                    passed, text = ALWAYS, f"local_retention.bytes {approximate_size(rule.bytes)}"
                passed = max(passed if segment.local_bytes else ALWAYS, self.pinned_until(segment))
                if segment.local_bytes:
                    dues.append(Due(max(passed, reached), EvictLocal.kind, text))
            reached = max(reached, min(passed, self._reached(segment.end_offset)[0]))
        return by_segment

    def _compressed(self, segment: SegmentFact, evict: Sequence[Due]) -> Iterator[Due]:
        rule, limit = self._policy.compress, self._policy.local_retention.age
        if rule.after is None or segment.newest or not segment.sealed or not segment.local_bytes:
            return
        if segment.codec == rule.codec and not has_small_blocks(segment, rule.block_bytes):
            return
        if segment.local_bytes < rule.min_bytes:
            return
        due_us = segment.last_append_us + to_us(rule.after)
        at = max(due_us, self._now_us)
        will_be_cold = self._has_cold and (segment.in_manifest or self._policy.offload.after is not None)
        if will_be_cold and limit is not None and not self._policy.pin.topic:
            leaves_us = max(segment.last_append_us + to_us(limit), self.pinned_until(segment))
            if at > leaves_us - COMPRESS_PAYS_US:
                return
        if all(item.due_us > at for item in evict):
            yield Due(due_us, Compress.kind, f"compress.after {format_duration(rule.after)}")

    # -- merge -----------------------------------------------------------------------------------

    def _merge_times(self) -> list[int]:
        """Return the times after now at which other objects than before may be merged, in order."""
        after, kept = self._policy.merge.after, self._policy.retention
        assert after is not None
        times = {due for due, _ in self._expiry}
        for item in self._facts.objects:
            times.add(item.last_append_us + to_us(after))
            if kept.age is not None:
                # Retention takes the object soon enough that it is left out from here on.
                stamp = item.max_timestamp_us if kept.by == "timestamp" else item.last_append_us
                times.add(stamp + -(-3 * to_us(kept.age) // 4))
        return sorted(time for time in times if self._now_us < time < NEVER)
