"""How many bytes each tier holds before a plan and after it: pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .actions import Action, Demote, EvictLocal, Expire, Promote
from .facts import PartitionFacts


@dataclass(frozen=True, slots=True)
class TierBytes:
    """One tier: ``warm``, the local disk, or ``cold``, the bucket.

    ``after`` is an estimate: what is uploaded counts with its local size, and compression is left out.
    """

    tier: str
    before: int
    after: int


def held(partitions: Iterable[PartitionFacts]) -> dict[str, int]:
    """Return how many bytes each tier holds; copies of objects are on the local disk too."""
    sums = {"warm": 0, "cold": 0}
    for facts in partitions:
        sums["warm"] += sum(item.local_bytes for item in facts.segments)
        sums["warm"] += sum(item.bytes for item in facts.copies)
        sums["cold"] += sum(item.bytes for item in facts.objects)
    return sums


def outlook(partitions: Iterable[PartitionFacts], actions: Iterable[Action]) -> tuple[TierBytes, TierBytes]:
    """Return warm and cold, once every one of `actions` is done."""
    warm, cold = held(partitions).values()
    warm_after, cold_after = warm, cold
    for action in actions:
        cold_after += action.cold_bytes_delta
        if isinstance(action, (EvictLocal, Demote)):
            warm_after -= action.bytes
        elif isinstance(action, Promote):
            warm_after += action.bytes
        elif isinstance(action, Expire):
            warm_after -= (
                action.bytes + action.cold_bytes_delta
            )  # bytes of both tiers, less those of the bucket
    return TierBytes("warm", warm, max(0, warm_after)), TierBytes("cold", cold, max(0, cold_after))
