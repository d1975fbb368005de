"""`PartitionPlan`: the plan of one partition while it is made; and the room on the disk, which all partitions share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..actions import Action, ChangeClass, Demote, Rewrite
from ..facts import PartitionFacts, SegmentFact, StoreFacts
from ..policy import Policy
from .case import PartitionCase, is_behind
from .change_class import class_moves
from .compact_keys import compaction
from .compress import compressions
from .cut import cut
from .erase import erasures
from .evict import evict, evictable, evictions
from .expire import expiry, waiting
from .merge import merges
from .offload import publications
from .promote import CopiesPlan
from .scrub import scrub
from .seal import may_leave, seal, seals

# Smaller ones are not worth an object of their own, however short the disk is.
_SEAL_BYTES_MIN = 1 << 20


class PartitionPlan:
    """The plan of one partition while it is made."""

    def __init__(self, facts: PartitionFacts, policy: Policy, store: StoreFacts, now_us: int) -> None:
        self.case = case = PartitionCase.of(facts, policy, store, now_us)
        self.moves_to: str | None = store.storage_class if store.has_classes else None
        self.notes: list[str] = []
        self.expire = expiry(case)
        self.waiting = waiting(case)
        self.start_offset = facts.start_offset if self.expire is None else self.expire.end_offset
        self.segments = [
            item
            for item in facts.live_segments()
            if item.end_offset > max(self.start_offset, item.base_offset)
        ]
        self.seals = list(seals(case, self.segments, self.start_offset))
        self.evictions = list(evictions(case, self.segments))
        self.copies = CopiesPlan(facts, policy, now_us, self.start_offset)
        self.demotions: list[Demote] = list(self.copies.dropped)
        self.promotions: list[Action] = []
        self.compaction = compaction(case, self.segments, self.start_offset)
        self.rewrites, self.moved = self._rewrites()

    def actions(self) -> list[Action]:
        """Return the actions in their safe order."""
        case, segments, start = self.case, self.segments, self.start_offset
        expire = [] if self.expire is None else [self.expire]
        freeing = [*self.demotions, *self.evictions]
        publishing = list(publications(case, segments, start, self.notes))
        return [
            *self.seals,
            *expire,
            *([*freeing, *publishing] if case.is_short else [*publishing, *freeing]),
            *compressions(case, segments, {item.segment_id for item in self.evictions}),
            *self._maintain(),
        ]

    def frees_disk(self) -> bool:
        """Whether it makes room on a disk that is short of it."""
        return self.case.is_short and bool(self.expire or self.evictions or self.demotions)

    def _rewrites(self) -> tuple[list[Rewrite], list[ChangeClass]]:
        if not self.case.has_cold:
            return [], []
        case, start = self.case, self.start_offset
        facts, policy, now = case.facts, case.policy, case.now_us
        begin = cut(facts, policy, start)
        rewrites: list[Rewrite] = [] if begin is None else [begin]
        # What a compaction leaves is merged later: it is much less.
        rewrites += merges(facts, policy, now, start) if self.compaction is None else ()
        names = {name for action in rewrites for name in action.names}
        if self.moves_to is None:
            return rewrites, []
        return rewrites, list(class_moves(facts, policy, now, start, self.moves_to, names))

    def rewritten(self) -> set[str]:
        """Return the names of objects that this plan replaces."""
        names = {name for action in self.rewrites for name in action.names}
        return names | {action.name for action in self.moved}

    def _maintain(self) -> Iterator[Action]:
        if not self.case.has_cold:
            return
        yield from erasures(self.case, self.segments, self.start_offset)
        if self.compaction is not None:
            yield self.compaction
        yield from (*self.rewrites, *self.moved)
        yield from self.promotions
        due = scrub(self.case.facts, self.case.policy, self.case.now_us, self.start_offset)
        if due is not None:
            yield due


def relieve_disk(facts: StoreFacts, plans: Sequence[PartitionPlan]) -> None:
    """While the disk would stay short, drop copies, then evict more, the oldest of all partitions first, then seal."""
    free = _free_after(facts, plans)
    copies = [
        (used, index, copy) for index, plan in enumerate(plans) for used, copy in plan.copies.droppable()
    ]
    for _, index, copy in sorted(copies, key=lambda item: item[:2]):
        if free < plans[index].case.floor_bytes:
            plan = plans[index]
            plan.demotions.append(plan.copies.drop(copy, plan.case.short_reason()))
            free += copy.bytes
    candidates: list[tuple[int, int, SegmentFact]] = []
    for index, plan in enumerate(plans):
        latest, planned = 0, {item.segment_id for item in plan.evictions}
        for segment in evictable(plan.case, plan.segments):
            if segment.segment_id not in planned:
                latest = max(latest, segment.last_append_us)  # keeps offset order within a partition
                candidates.append((latest, index, segment))
    for _, index, segment in sorted(candidates, key=lambda item: item[:2]):
        if free < plans[index].case.floor_bytes:
            plans[index].evictions.append(evict(segment, plans[index].case.short_reason()))
            free += segment.local_bytes
    _seal_for_room(free, plans)


def _seal_for_room(free: int, plans: Sequence[PartitionPlan]) -> None:
    """Seal active segments, the largest first, while what later passes can evict would leave the disk short."""
    active: list[tuple[int, int, SegmentFact]] = []
    for index, plan in enumerate(plans):
        if not may_leave(plan.case):
            continue
        planned = {item.segment_id for item in (*plan.evictions, *plan.seals)}
        for segment in plan.segments:
            if segment.segment_id in planned:
                free += 0 if segment.sealed else segment.local_bytes
            elif not segment.newest:
                free += segment.local_bytes
            elif not segment.sealed and segment.local_bytes >= _SEAL_BYTES_MIN:
                active.append((-segment.local_bytes, index, segment))
    for _, index, segment in sorted(active, key=lambda item: item[:2]):
        if free < plans[index].case.floor_bytes:
            plans[index].seals.append(seal(segment, plans[index].case.short_reason()))
            free += segment.local_bytes


def promote(facts: StoreFacts, plans: Sequence[PartitionPlan]) -> None:
    """Plan copies while the disk keeps twice its floor free: the next appends must not displace them again."""
    room = 1 << 62
    if facts.disk_total_bytes:
        floor = max((plan.case.floor_bytes for plan in plans), default=0)
        room = facts.disk_free_bytes - 2 * floor
    for plan in plans if facts.has_cold else ():
        made = list(plan.copies.promotions(room, plan.rewritten()))
        plan.promotions += made
        room -= sum(item.bytes for item in made)


def _free_after(facts: StoreFacts, plans: Sequence[PartitionPlan]) -> int:
    free = facts.disk_free_bytes
    for plan in plans:
        start = plan.start_offset
        free += sum(item.local_bytes for item in plan.case.facts.segments if is_behind(item, start))
        free += sum(item.bytes for item in (*plan.evictions, *plan.demotions))
    return free
