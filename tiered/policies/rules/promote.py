"""The rule of local copies: which objects get a copy on the local disk, and which copies are deleted. Pure.

An object gets a copy if readers fetched it often, or if its records are of a time that is pinned. A copy is made only in
room that is free, so no copy displaces another, and repeated plans end. After a copy is deleted, the fetches of its object
are counted from zero.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from ...base.units import approximate_size, format_duration, to_us
from ..actions import Demote, Promote
from ..cost import COPY_REQUEST_BYTES, Requests
from ..facts import CopyFact, ObjectFact, PartitionFacts
from ..policy import Policy


class CopiesPlan:
    """The copies of one partition while its plan is made.

    Parameters
    ----------
    start_offset
        The start offset of the log after this plan's expiry.
    """

    def __init__(self, facts: PartitionFacts, policy: Policy, now_us: int, start_offset: int) -> None:
        self._facts = facts
        self._policy = policy
        self._now_us = now_us
        self._objects = {
            item.name: item for item in facts.objects if item.count == 1 and item.end_offset > start_offset
        }
        # A manifest or page that was not read may name any object.
        self._all_known = facts.published_start_offset is not None and all(
            item.count == 1 for item in facts.objects
        )
        self.kept = sorted(facts.copies, key=self._used_us)
        self.dropped = list(self._drop())

    def _drop(self) -> Iterator[Demote]:
        """Remove the copies without a reason to stay from `kept`, and yield the actions."""
        rule = self._policy.promote
        for copy in list(self.kept):
            fact = self._objects.get(copy.name)
            unused = self._now_us - self._used_us(copy)
            if fact is None and self._all_known:
                reason = "its object is not in the manifest any more"
            elif self.is_held(copy):
                continue
            elif rule.reads is None:
                reason = "no rule asks for it"
            elif unused >= to_us(rule.keep):
                reason = f"not read for {format_duration(unused, parts=2)} >= promote.keep {format_duration(rule.keep)}"
            else:
                continue
            yield self.drop(copy, reason)
        for copy in [fact for fact in self.kept if not self.is_held(fact)]:
            size = sum(fact.bytes for fact in self.kept)
            if size <= rule.bytes:
                return
            reason = f"size {approximate_size(size)}, promote.bytes is {approximate_size(rule.bytes)}"
            yield self.drop(copy, reason)

    def drop(self, copy: CopyFact, reason: str) -> Demote:
        """Return the action that drops a copy, which is not kept any more."""
        self.kept.remove(copy)
        item = self._objects.get(copy.name)
        return Demote(**self._about(item), bytes=copy.bytes, reason=reason, name=copy.name)

    def droppable(self) -> list[tuple[int, CopyFact]]:
        """Return the copies that may be dropped for room, with the times of their last use."""
        return [(self._used_us(item), item) for item in self.kept if not self.is_held(item)]

    def is_held(self, copy: CopyFact) -> bool:
        """Whether a copy is of a damaged object or a pinned time, or may be pinned because its object is unknown."""
        item, pin = self._objects.get(copy.name), self._policy.pin
        if item is None:
            return not self._all_known and (pin.since is not None or pin.until is not None)
        return item.damaged or self._holds(item)

    def promotions(self, room_bytes: int, replaced: Collection[str]) -> Iterator[Promote]:
        """Yield the copies to make, pinned ones first, then those most fetched, in so much room on the disk.

        Parameters
        ----------
        replaced
            Names of objects that are about to be replaced by others.
        """
        rule = self._policy.promote
        has = {item.name for item in self._facts.copies}
        away = {item.key for item in self._facts.cold_objects}
        size = sum(item.bytes for item in self.kept)
        wanted = [
            item
            for item in self._objects.values()
            if item.sealed
            and not item.damaged
            and item.name in away
            and item.name not in has
            and item.name not in replaced
        ]
        for item in sorted(wanted, key=lambda item: (not self._holds(item), -item.fetches, item.base_offset)):
            pinned = self._holds(item)
            if not pinned and (not self._is_hot(item) or size + item.bytes > rule.bytes):
                continue
            if item.bytes > room_bytes:
                continue
            room_bytes -= item.bytes
            size += item.bytes
            reads = f"fetched in {item.fetches} minutes >= promote.reads {rule.reads}"
            yield Promote(
                **self._about(item),
                bytes=item.bytes,
                requests=Requests(reads=1 + item.bytes // COPY_REQUEST_BYTES),
                reason="its time is pinned" if pinned else reads,
                name=item.name,
            )

    def _holds(self, item: ObjectFact) -> bool:
        return self._policy.pin.holds(item.min_timestamp_us, item.max_timestamp_us)

    def _is_hot(self, item: ObjectFact) -> bool:
        rule = self._policy.promote
        recent = self._now_us - item.fetched_us < to_us(rule.within)
        return rule.reads is not None and item.fetches >= rule.reads and recent

    def _used_us(self, copy: CopyFact) -> int:
        item = self._objects.get(copy.name)
        return max(copy.used_us, item.fetched_us if item else 0)

    def _about(self, item: ObjectFact | None) -> dict[str, Any]:
        return {
            "topic": self._facts.topic,
            "partition": self._facts.partition,
            "segment_id": None,
            "base_offset": item.base_offset if item else 0,
            "end_offset": item.end_offset if item else 0,
        }
