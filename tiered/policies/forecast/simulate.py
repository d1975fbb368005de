"""The simulation of a store up to a later time, without appends: facts + rules + times -> steps. Pure.

The simulation makes a plan at each time at which an age reaches the limit of a rule, and assumes that the plan is carried
out. It ends when no plan has an action. Sizes are estimates: an object is as large as its segment, and compression saves
nothing. In a large store, times that lie close together count as one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from ...base.units import to_us
from ...format.manifest import Compaction
from ..actions import (
    Action,
    ChangeClass,
    Compact,
    Compress,
    Demote,
    Erase,
    EvictLocal,
    Expire,
    Offload,
    Promote,
    Rewrite,
    Scrub,
    Seal,
    ShipTail,
    Sweep,
)
from ..facts import ColdObjectFact, CopyFact, ObjectFact, PartitionFacts, ScrubFact, SegmentFact, StoreFacts
from ..outlook import TierBytes, bytes_by_tier
from ..plan import Plan, make_plan
from ..policy import Policy

_PASSES_MAX = 1000
"""The most passes that are simulated at one time; plans come to rest long before."""

_TIMES_MAX = 200
_LOOKS_MAX = 30_000


@dataclass(frozen=True, slots=True)
class Group:
    """Actions of one kind for one topic by one rule.

    Attributes
    ----------
    first_us, last_us
        When the first and the last of them is due.
    """

    kind: str
    topic: str
    rule: str
    count: int
    bytes: int
    requests: int
    first_us: int
    last_us: int


@dataclass(frozen=True, slots=True)
class Simulation:
    """What passes would do from ``start_us`` to ``end_us``.

    Attributes
    ----------
    steps
        Each action with its time, in the order in which it would be carried out.
    tiers
        What each tier holds at the start and at the end.
    end
        What the store has then.
    notes, waiting
        As of `Plan`, at the end.
    """

    start_us: int
    end_us: int
    steps: tuple[tuple[int, Action], ...]
    tiers: tuple[TierBytes, ...]
    end: StoreFacts
    notes: tuple[str, ...] = ()
    storage_class: str = "STANDARD"
    waiting: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """All of it as one plan, for its sums."""
        actions = tuple(action for _, action in self.steps)
        return Plan(self.end_us, actions, self.notes, self.storage_class, self.tiers, waiting=self.waiting)

    def groups(self) -> list[Group]:
        """Return the steps by kind, topic and rule, in the order of their first times."""
        groups: dict[tuple[str, str, str], Group] = {}
        for at_us, action in self.steps:
            named = re.search(r"[a-z_]+\.[a-z_]+", action.reason)
            key = action.kind, action.location()[0], named[0] if named else ""
            requests = action.requests.writes + action.requests.reads
            group = groups.get(key) or Group(*key, 0, 0, 0, at_us, at_us)
            groups[key] = replace(
                group,
                count=group.count + 1,
                bytes=group.bytes + action.bytes,
                requests=group.requests + requests,
                last_us=at_us,
            )
        return list(groups.values())

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: as of `Plan`, with a time for each action, and the groups."""
        values = self.plan.to_json()
        for (at_us, _), action in zip(self.steps, values["actions"], strict=True):
            action["at_us"] = at_us
        return {**values, "start_us": self.start_us, "groups": [asdict(item) for item in self.groups()]}


def simulate(
    facts: StoreFacts,
    policy_for: Callable[[str], Policy],
    end_us: int,
    *,
    sweep_every: timedelta | None = None,
) -> Simulation:
    """Return what passes would do until `end_us`; parameters are as of `make_plan`."""
    steps: list[tuple[int, Action]] = []
    start, before = facts.now_us, bytes_by_tier(facts.partitions)
    notes: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    for at_us in _times(facts, policy_for, end_us, sweep_every):
        for _ in range(_PASSES_MAX):
            plan = make_plan(facts, policy_for, at_us, sweep_every=sweep_every)
            notes, waiting = plan.notes, plan.waiting
            if not plan.actions:
                break
            steps += ((at_us, action) for action in plan.actions)
            facts = apply_actions(facts, plan.actions, at_us)
    after = bytes_by_tier(facts.partitions)
    tiers = tuple(TierBytes(name, before[name], after[name]) for name in before)
    return Simulation(
        start, end_us, tuple(steps), tiers, replace(facts, now_us=end_us), notes, facts.storage_class, waiting
    )


# -- times -----------------------------------------------------------------------------------------


def _times(
    facts: StoreFacts, policy_for: Callable[[str], Policy], end_us: int, sweep_every: timedelta | None
) -> list[int]:
    """Return the times to look at: now, the end, and where an age comes to a limit between them."""
    start, items = facts.now_us, 1
    times: set[int] = set()
    for part in facts.partitions:
        items += len(part.segments) + len(part.objects)
        times.update(at for at in _limits(part, policy_for(part.topic), end_us) if start < at < end_us)
    if sweep_every is not None and facts.swept_us is not None:
        times.update(_every(facts.swept_us, start, end_us, to_us(sweep_every)))
    most = max(10, min(_TIMES_MAX, _LOOKS_MAX // items))
    chosen = sorted(times)
    # The latest of each run of neighbours: by then all of them are due.
    chosen = (
        chosen if len(chosen) <= most else [chosen[(i + 1) * len(chosen) // most - 1] for i in range(most)]
    )
    return [start, *chosen, *([end_us] if end_us > start else [])]


def _limits(facts: PartitionFacts, policy: Policy, end_us: int) -> Iterator[int]:
    ages = [
        policy.roll.age, policy.compress.after, policy.offload.after, policy.local_retention.age,
        policy.retention.age, policy.merge.after, policy.storage_class.after, policy.pin.age,
        policy.promote.keep, policy.retention.unless_behind_max,
    ]  # fmt: skip
    limits = [to_us(age) for age in ages if age is not None]
    stamps = {item.last_append_us for item in facts.segments}
    stamps |= {item.last_append_us for item in facts.objects}
    stamps |= {item.created_us for item in facts.segments} | {item.used_us for item in facts.copies}
    stamps |= {item.max_timestamp_us for item in facts.segments if policy.retention.by == "timestamp"}
    stamps |= {item.max_timestamp_us for item in facts.objects if policy.retention.by == "timestamp"}
    for limit in limits:
        yield from (stamp + limit for stamp in stamps)
    if policy.offload.tail_interval is not None:
        yield facts.tail_shipped_us + to_us(policy.offload.tail_interval)
    if policy.scrub.every is not None and stamps:
        begun = facts.scrub.started_us if facts.scrub else min(stamps)
        yield from _every(begun, begun, end_us, to_us(policy.scrub.every))


def _every(begun_us: int, start_us: int, end_us: int, every_us: int) -> Iterator[int]:
    first = max(begun_us + every_us, start_us + 1)
    for number in range(min(_TIMES_MAX, max(0, (end_us - first) // every_us + 1))):
        yield first + number * every_us


# -- what actions do -------------------------------------------------------------------------------


def apply_actions(facts: StoreFacts, actions: Iterable[Action], now_us: int) -> StoreFacts:
    """Return the facts once all `actions` are done, in their order."""
    parts = {(item.topic, item.partition): item for item in facts.partitions}
    before = bytes_by_tier(facts.partitions)["warm"]
    swept_us = facts.swept_us
    for action in actions:
        key = action.topic, action.partition
        if isinstance(action, Sweep):
            swept_us = now_us
        else:
            parts[key] = _done(parts[key], action, now_us)
    left = facts.disk_free_bytes + before - bytes_by_tier(parts.values())["warm"]
    return replace(facts, partitions=tuple(parts.values()), disk_free_bytes=left, swept_us=swept_us)


def _done(facts: PartitionFacts, action: Action, now_us: int) -> PartitionFacts:
    match action:
        case Expire():
            return _expired(facts, action)
        case Rewrite():
            return _rewritten(facts, action)
        case Erase():
            marked = (
                replace(item, checked_offset=max(item.checked_offset, action.end_offset))
                for item in facts.erasures
            )
            return replace(
                facts, erasures=tuple(item for item in marked if item.checked_offset < item.horizon)
            )
        case Compact():
            # The number of records that it removes is unknown.
            compaction = replace(
                facts.compaction or Compaction(),
                target_offset=action.end_offset,
                removed_offset=action.tombstone_offset,
            )
            return replace(facts, compaction=compaction.done(now_us))
        case ChangeClass():
            return replace(
                facts,
                objects=tuple(
                    replace(item, name=f"{item.name} moved", storage_class=action.storage_class)
                    if item.name == action.name
                    else item
                    for item in facts.objects
                ),
            )
        case Promote():
            return replace(facts, copies=(*facts.copies, CopyFact(action.name, action.bytes, now_us)))
        case Demote():
            left = tuple(item for item in facts.copies if item.name != action.name)
            objects = tuple(
                replace(item, fetches=0) if item.name == action.name else item for item in facts.objects
            )
            return replace(facts, copies=left, objects=objects)
        case Scrub():
            state = facts.scrub or ScrubFact()
            begun = state.started_us if state.round == action.round else now_us
            finished, reached = (now_us, 0) if action.completes else (0, action.end_offset)
            return replace(facts, scrub=ScrubFact(action.round, begun, finished, reached))
    (segment,) = (item for item in facts.segments if item.segment_id == action.segment_id)
    rest = tuple(item for item in facts.segments if item is not segment)
    return _segment_done(facts, segment, rest, action, now_us)


def _segment_done(
    facts: PartitionFacts, segment: SegmentFact, rest: tuple[SegmentFact, ...], action: Action, now_us: int
) -> PartitionFacts:
    match action:
        case Seal():
            fresh = replace(
                segment, segment_id=UUID(int=(segment.segment_id.int + 1) % (1 << 128)),
                base_offset=segment.end_offset, record_count=0, local_bytes=0, created_us=now_us,
                last_append_us=now_us, generation=0, block_count=0, raw_bytes=0,
            )  # fmt: skip
            return replace(facts, segments=(*rest, replace(segment, sealed=True, newest=False), fresh))
        case Offload():
            whole = replace(segment, in_manifest=True, cold_bytes=segment.local_bytes)
            tails = tuple(x for x in facts.cold_objects if segment.segment_id not in x.segment_ids)
            facts = replace(facts, segments=(*rest, whole), cold_objects=tails)
            return _published(facts, segment, segment.base_offset, segment.end_offset, sealed=True)
        case ShipTail():
            facts = _published(facts, segment, action.base_offset, action.end_offset, sealed=False)
            return replace(facts, tail_shipped_us=now_us)
        case EvictLocal():
            cold = tuple(
                ColdObjectFact(
                    item.name, (segment.segment_id,), item.base_offset, item.end_offset, item.bytes,
                    item.last_append_us, item.max_timestamp_us,
                )
                for item in facts.objects
                if item.base_offset < segment.end_offset and segment.base_offset < item.end_offset
                and all(item.name != known.key for known in facts.cold_objects)
            )  # fmt: skip
            return replace(facts, segments=rest, cold_objects=(*facts.cold_objects, *cold))
        case Compress():
            smaller = replace(segment, codec=action.codec, generation=segment.generation + 1)
            return replace(facts, segments=(*rest, smaller))
    raise AssertionError(action)


def _expired(facts: PartitionFacts, action: Expire) -> PartitionFacts:
    end_offset = action.end_offset
    has_manifest = action.begins_manifest or facts.published_start_offset is not None
    return replace(
        facts,
        start_offset=end_offset,
        published_offset=max(facts.published_offset, end_offset),
        published_start_offset=end_offset if has_manifest else None,
        segments=tuple(x for x in facts.segments if x.end_offset > end_offset or x.newest),
        cold_objects=tuple(x for x in facts.cold_objects if x.end_offset > end_offset),
        objects=tuple(x for x in facts.objects if x.end_offset > end_offset),
    )


def _rewritten(facts: PartitionFacts, action: Rewrite) -> PartitionFacts:
    inputs = [item for item in facts.objects if item.name in action.names]
    written = replace(
        inputs[-1],
        name=f"{'+'.join(action.names)} {action.kind}",
        base_offset=action.base_offset,
        bytes=action.bytes,
        last_append_us=max(item.last_append_us for item in inputs),
        max_timestamp_us=max(item.max_timestamp_us for item in inputs),
        min_timestamp_us=min(item.min_timestamp_us for item in inputs),
        segment_count=sum(item.segment_count for item in inputs),
    )
    return replace(facts, objects=_spliced(facts, written))


def _published(
    facts: PartitionFacts, segment: SegmentFact, base: int, end: int, *, sealed: bool
) -> PartitionFacts:
    share = segment.local_bytes * (end - base) // max(1, segment.end_offset - segment.base_offset)
    fresh = ObjectFact(
        f"{segment.segment_id}-{base}-{end}", base, end, share, segment.last_append_us,
        segment.max_timestamp_us, sealed=sealed, min_timestamp_us=segment.max_timestamp_us,
        lineage=max((item.lineage for item in facts.objects), default=0),
        schema_id=max((item.schema_id for item in facts.objects), default=0),
    )  # fmt: skip
    return replace(facts, published_offset=max(facts.published_offset, end), objects=_spliced(facts, fresh))


def _spliced(facts: PartitionFacts, fresh: ObjectFact) -> tuple[ObjectFact, ...]:
    rest = [
        item
        for item in facts.objects
        if item.end_offset <= fresh.base_offset or item.base_offset >= fresh.end_offset
    ]
    return tuple(sorted([*rest, fresh], key=lambda item: item.base_offset))
