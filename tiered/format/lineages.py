"""The common part of the logs of two lineages, according to a head. Pure."""

from __future__ import annotations

from itertools import pairwise

from .manifest import Head

UNBOUNDED = 1 << 63
"""Above every offset: the common end of a lineage with itself."""


def shared_end(head: Head, one: int, other: int) -> int:
    """Return the offset below which the logs of two lineages are the same; 0 if the head does not know one of them."""
    first, second = ancestors(head, one), ancestors(head, other)
    return max((min(first[epoch], second[epoch]) for epoch in first.keys() & second.keys()), default=0)


def ancestors(head: Head, epoch: int) -> dict[int, int]:
    """Return a lineage and its ancestors, the newest first, each with the offset below which the lineage has the ancestor's log."""
    parents = {later: (earlier, start) for (earlier, _), (later, start) in pairwise(head.lineages)}
    parents |= {origin.epoch: (origin.parent, origin.end_offset) for origin in head.origins}
    ends = {epoch: UNBOUNDED}
    end = UNBOUNDED
    while epoch in parents:
        epoch, begin = parents[epoch]
        end = ends[epoch] = min(end, begin)
    return ends
