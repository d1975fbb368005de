"""The explanation of a partition: facts + rules + now -> the next action of each run of offsets, and its time. Pure.

The next action of a run is the first that `make_plan` asks for, at the time at which it asks for it, while the facts stay the
same: nothing is appended, and no pass runs. The action after it (``then``) is an estimate: it assumes that each action is
carried out when it is due.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from ...base.units import format_duration, to_us
from ..actions import Action, ChangeClass, Compact, Erase, EvictLocal, Expire, Offload, Rewrite, Scrub, Seal
from ..facts import PartitionFacts, SegmentFact, Span, StoreFacts
from ..plan import make_plan
from ..policy import Policy
from ..rules.case import erasure_reason, retention_stamp_us, unread_until_us
from .due import NEVER, Due, Forecast


@dataclass(frozen=True, slots=True)
class Step:
    """One action to come.

    Attributes
    ----------
    due_us
        When it is first asked for; not before the time of the explanation.
    why
        The rule that asks for it; where it is due, with the fact that met it.
    """

    kind: str
    due_us: int
    why: str

    def text(self, now_us: int) -> str:
        """Return ``offload in 4m (offload.after 10m)``."""
        when = "now" if self.due_us <= now_us else f"in {format_duration(self.due_us - now_us, parts=2)}"
        return f"{self.kind} {when} ({self.why})"


@dataclass(frozen=True, slots=True)
class OffsetRun:
    """A run of offsets that moves as one: a segment, or what the local disk lacks of an object.

    Attributes
    ----------
    tiers
        ``hot``, ``warm`` (a local file) and ``cold`` (an object; with ``cold_end_offset``, up to there), and
        ``copy`` where the local disk has a copy of the object.
    segment_id, object_name
        The segment, where there is a local file; else the object.
    state
        ``active`` while it is appended to, else ``sealed``.
    local_bytes, cold_bytes
        What it takes in either tier.
    created_us, last_append_us
        Of the segment, where it is local; of the object only the latter is known.
    next
        None where no rule will ever ask for anything.
    then
        Estimates of what follows it, in the order of time.
    hold
        What keeps it where it is, though its time there is up; or empty.
    """

    base_offset: int
    end_offset: int
    tiers: tuple[str, ...]
    state: str
    local_bytes: int
    cold_bytes: int
    last_append_us: int
    created_us: int | None = None
    cold_end_offset: int | None = None
    segment_id: UUID | None = None
    object_name: str | None = None
    next: Step | None = None
    then: tuple[Step, ...] = ()
    hold: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One partition.

    Attributes
    ----------
    scrub
        When its objects are looked at again; None where that is not due by any rule.
    notes
        What stands in the way of actions, one line each.
    """

    topic: str
    partition: int
    now_us: int
    start_offset: int
    end_offset: int
    pieces: tuple[OffsetRun, ...]
    scrub: Step | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; ids are text."""
        values = asdict(self)
        for piece in values["pieces"]:
            piece["segment_id"] = None if piece["segment_id"] is None else str(piece["segment_id"])
        return values


def explain(
    facts: StoreFacts, policy_for: Callable[[str], Policy], now_us: int | None = None
) -> list[Explanation]:
    """Explain every partition.

    Parameters
    ----------
    facts, policy_for, now_us
        As for `make_plan`.
    """
    now = facts.now_us if now_us is None else now_us
    plan = make_plan(facts, policy_for, now)
    explanations = []
    for partition in facts.partitions:
        mine = [
            act
            for act in plan.actions
            if (act.topic, act.partition) == (partition.topic, partition.partition)
        ]
        notes = [
            note
            for note in (*plan.notes, *plan.waiting)
            if note.startswith(f"{partition.topic}/{partition.partition}:")
        ]
        policy = policy_for(partition.topic)
        default_class = facts.storage_class if facts.has_classes else None
        pieces = _Pieces(partition, policy, facts.has_cold, default_class, now, mine).all()
        left = [act for act in mine if isinstance(act, Expire) and act.base_offset == act.end_offset]
        notes += [
            f"{partition.topic}/{partition.partition}: files that expired earlier are removed now"
            for _ in left
        ]
        if not any(isinstance(act, Erase) for act in mine):
            notes += [
                f"{partition.topic}/{partition.partition}: {erasure_reason(item)} once all of these are in the bucket"
                for item in partition.erasures
                if item.checked_offset < item.horizon
            ]
        explanations.append(
            Explanation(
                topic=partition.topic,
                partition=partition.partition,
                now_us=now,
                start_offset=partition.start_offset,
                end_offset=partition.end_offset,
                pieces=tuple(pieces),
                scrub=_scrub(partition, policy, now, mine) if facts.has_cold else None,
                notes=tuple(notes),
            )
        )
    return explanations


class _Pieces:
    """Puts the pieces of one partition together; what is due at `now_us` is in `due`.

    `default_class` is None where the bucket has no storage classes.
    """

    def __init__(
        self,
        facts: PartitionFacts,
        policy: Policy,
        has_cold: bool,
        default_class: str | None,
        now_us: int,
        due: Iterable[Action],
    ) -> None:
        self._facts = facts
        self._policy = policy
        self._has_cold = has_cold
        self._now_us = now_us
        self._due = list(due)
        self._forecast = Forecast(facts, policy, has_cold, now_us)
        self._changes = [*self._forecast.merged(), *self._forecast.moved(default_class)]
        self._objects = sorted(facts.cold_objects, key=lambda item: item.base_offset)

    def all(self) -> Iterator[OffsetRun]:
        """Yield them in offset order; together they are the live log, each offset once."""
        segments = {item.base_offset: (item, dues) for item, dues in self._forecast.by_segment()}
        blocked = False
        for span in self._facts.spans():
            if span.base_offset not in segments:
                yield self._object(span)
                continue
            segment, dues = segments[span.base_offset]
            yield self._segment(segment, dues, blocked=blocked)
            blocked = blocked or not self._forecast.is_evictable(segment)

    def _segment(self, segment: SegmentFact, dues: list[Due], *, blocked: bool) -> OffsetRun:
        base, end = segment.base_offset, segment.end_offset
        cold_end = end if segment.in_manifest else min(end, self._facts.published_offset)
        is_cold = self._has_cold and cold_end > base
        steps = self._steps(base, end, segment.segment_id, dues)
        return OffsetRun(
            base_offset=base,
            end_offset=end,
            tiers=("warm", "cold") if is_cold else ("warm",),
            state="sealed" if segment.sealed else "active",
            local_bytes=segment.local_bytes,
            cold_bytes=segment.cold_bytes,
            last_append_us=segment.last_append_us,
            created_us=segment.created_us,
            cold_end_offset=cold_end if is_cold else None,
            segment_id=segment.segment_id,
            next=steps[0] if steps else None,
            then=tuple(self._then(segment, steps[0] if steps else None)),
            hold=self._hold(segment, steps, blocked),
        )

    def _object(self, span: Span) -> OffsetRun:
        index = bisect_right(self._objects, span.base_offset, key=lambda item: item.base_offset) - 1
        name = self._objects[index].key if index >= 0 else None
        steps = self._steps(span.base_offset, span.end_offset, None, [])
        expire = [item for item in steps[1:] if item.kind == Expire.kind]
        return OffsetRun(
            base_offset=span.base_offset,
            end_offset=span.end_offset,
            tiers=("cold", "copy") if any(item.name == name for item in self._facts.copies) else ("cold",),
            state="sealed",
            local_bytes=0,
            cold_bytes=span.bytes,
            last_append_us=span.last_append_us,
            cold_end_offset=span.end_offset,
            object_name=name,
            next=steps[0] if steps else None,
            then=tuple(expire),
        )

    def _steps(self, base: int, end: int, segment_id: UUID | None, dues: list[Due]) -> list[Step]:
        """Return the first time of each kind of action, in the order of time."""
        now = self._now_us
        first_steps = {
            action.kind: Step(action.kind, now, action.reason)
            for action in self._due
            if _touches(action, base, end, segment_id)
        }
        expiry = self._forecast.expires(end)
        merged = [
            due for due, action in self._changes if action.base_offset < end and base < action.end_offset
        ]
        for due in sorted([*dues, *merged, expiry]):
            if now < due.due_us < NEVER and due.due_us <= expiry.due_us:
                first_steps.setdefault(due.kind, Step(due.kind, due.due_us, due.rule))
        return sorted(first_steps.values(), key=lambda step: step.due_us)

    def _then(self, segment: SegmentFact, first: Step | None) -> Iterator[Step]:
        """Yield the rest of a segment's life, as it goes if nothing is appended to it any more."""
        if first is None or first.kind == Expire.kind:
            return
        at, kind = first.due_us, first.kind
        offload, local, retention = self._policy.offload, self._policy.local_retention, self._policy.retention
        last, steps = segment.last_append_us, []
        published = segment.in_manifest or kind == Offload.kind
        will_be_sealed = segment.sealed or kind == Seal.kind
        if self._has_cold and offload.after is not None and will_be_sealed and not published:
            published, at = True, max(at, last + to_us(offload.after))
            steps.append(Step(Offload.kind, at, f"offload.after {format_duration(offload.after)}"))
        if published and local.age is not None and kind != EvictLocal.kind and not self._policy.pin.topic:
            due = max(at, last + to_us(local.age), self._forecast.pinned_until(segment))
            steps.append(Step(EvictLocal.kind, due, f"local_retention.age {format_duration(local.age)}"))
        if retention.age is not None and will_be_sealed:
            due = max(first.due_us, retention_stamp_us(self._policy, segment) + to_us(retention.age))
            rule = f"retention.age {format_duration(retention.age)}"
            unread_us = unread_until_us(self._facts, self._policy, segment)
            if due < unread_us and retention.unless_behind_max is not None:
                due, rule = (
                    unread_us,
                    f"retention.unless_behind_max {format_duration(retention.unless_behind_max)}",
                )
            steps = [step for step in steps if step.due_us < due]
            steps.append(Step(Expire.kind, due, rule))
        yield from steps

    def _hold(self, segment: SegmentFact, steps: list[Step], blocked: bool) -> str:
        """Say why a segment whose local time is up is not evicted."""
        age = self._policy.local_retention.age
        if not self._has_cold or age is None or self._now_us - segment.last_append_us < to_us(age):
            return ""
        if any(step.kind == EvictLocal.kind and step.due_us <= self._now_us for step in steps):
            return ""
        if segment.newest:
            return "stays local: the newest file of its partition"
        if self._policy.pin.topic or self._forecast.pinned_until(segment) > self._now_us:
            return "stays local: pinned"
        if not segment.in_manifest:
            return "stays local: not in the bucket yet"
        if self._facts.is_damaged_in_bucket(segment):
            return "stays local: its object is damaged, see tiered verify --repair"
        return "stays local: so does what is before it" if blocked else ""


def _touches(action: Action, base: int, end: int, segment_id: UUID | None) -> bool:
    if isinstance(action, Expire):
        return action.base_offset < action.end_offset and end <= action.end_offset
    if isinstance(action, (Rewrite, ChangeClass, Compact, Erase)):
        return action.base_offset < end and base < action.end_offset
    return action.segment_id is not None and action.segment_id == segment_id


def _scrub(facts: PartitionFacts, policy: Policy, now_us: int, due: Iterable[Action]) -> Step | None:
    """Return the next look at the objects; of the first round it is an estimate."""
    for action in due:
        if isinstance(action, Scrub):
            return Step(Scrub.kind, now_us, action.reason)
    every, state = policy.scrub.every, facts.scrub
    sealed = [item for item in facts.objects if item.sealed and item.end_offset > facts.start_offset]
    if every is None or not sealed:
        return None
    begun = state.started_us if state is not None else min(item.last_append_us for item in sealed)
    return Step(Scrub.kind, max(now_us, begun + to_us(every)), f"scrub.every {format_duration(every)}")
