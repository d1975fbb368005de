"""The rule of scrubs: which objects of a partition a pass checks. A round checks each once, in the order of offsets. Pure."""

from __future__ import annotations

from ...base.units import format_duration, to_us
from ..actions import Scrub
from ..cost import COPY_REQUEST_BYTES, Requests
from ..facts import ObjectFact, PartitionFacts, ScrubFact
from ..policy import Policy

DEEP_EVERY = 4
"""One of so many rounds reads all bytes, even if the server keeps checksums: its answer is no proof."""

OBJECTS_MAX = 1000


def scrub(facts: PartitionFacts, policy: Policy, now_us: int, start_offset: int) -> Scrub | None:
    """Return the scrub of this pass, or None if none is due.

    The first round begins once the oldest object is as old as the interval between rounds, since each upload was verified.
    """
    rule = policy.scrub
    objects = [item for item in facts.objects if item.sealed and item.end_offset > start_offset]
    if rule.every is None or not objects:
        return None
    every, state = to_us(rule.every), facts.scrub
    if state is None:
        state = ScrubFact(0, min(item.last_append_us for item in objects), 1)
    rest = [item for item in objects if item.base_offset >= state.next_offset]
    age = now_us - state.started_us
    if state.finished_us or not rest:
        # A clock that was once far ahead must not put the next round off until then.
        if 0 <= age < every or (age < 0 and -age < every):
            return None
        reason = f"round {state.round + 1}: {format_duration(max(age, 0), parts=2)} >= scrub.every {format_duration(every)}"
        return _scrub(facts, objects, rule.bytes_per_pass, now_us, state.round + 1, reason)
    return _scrub(facts, rest, rule.bytes_per_pass, now_us, state.round, f"round {state.round} goes on")


def _scrub(
    facts: PartitionFacts, rest: list[ObjectFact], budget: int, now_us: int, number: int, reason: str
) -> Scrub:
    chosen: list[ObjectFact] = []
    size = 0
    for item in rest[:OBJECTS_MAX]:
        # The page at the offset where a round goes on was read, so something is always chosen.
        if chosen and (size + item.bytes > budget or item.count > 1):
            break
        chosen.append(item)
        size += item.bytes
    deep = number % DEEP_EVERY == 0
    reads = sum(2 + item.bytes // COPY_REQUEST_BYTES for item in chosen) if deep else len(chosen)
    return Scrub(
        topic=facts.topic,
        partition=facts.partition,
        segment_id=None,
        base_offset=chosen[0].base_offset,
        end_offset=chosen[-1].end_offset,
        bytes=size,
        requests=Requests(reads=reads),
        reason=reason,
        planned_us=now_us,
        round=number,
        deep=deep,
        completes=len(chosen) == len(rest),
    )
