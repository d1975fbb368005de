"""How far the logs of two lineages of a partition are one: what a head says of them. Pure."""

from __future__ import annotations

from itertools import pairwise

from .manifest import Head

WHOLLY = 1 << 63
"""Beyond every offset: up to here a log is the same as itself."""


def shared_end(head: Head, one: int, other: int) -> int:
    """Return the offset below which the logs of two lineages are the same; 0 where the head does not know of one."""
    first, second = _ancestors(head, one), _ancestors(head, other)
    return max((min(first[epoch], second[epoch]) for epoch in first.keys() & second.keys()), default=0)


def _ancestors(head: Head, epoch: int) -> dict[int, int]:
    """Return the lineages that one came from, and itself, with the offsets below which its log is theirs."""
    came_from = {later: (earlier, start) for (earlier, _), (later, start) in pairwise(head.lineages)}
    came_from |= {origin.epoch: (origin.parent, origin.end_offset) for origin in head.origins}
    found = {epoch: WHOLLY}
    end = WHOLLY
    while epoch in came_from:
        epoch, begin = came_from[epoch]
        end = found[epoch] = min(end, begin)
    return found
