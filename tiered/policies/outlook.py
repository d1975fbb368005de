"""The bytes in each tier before and after a plan. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .actions import Action, Demote, EvictLocal, Expire, Promote
from .facts import PartitionFacts


@dataclass(frozen=True, slots=True)
class TierBytes:
    """The bytes in one tier: ``warm``, the local disk, or ``cold``, the bucket.

    ``after`` is an estimate: uploads count with their local size, and compression is ignored.
    """

    tier: str
    before: int
    after: int


def bytes_by_tier(partitions: Iterable[PartitionFacts]) -> dict[str, int]:
    """Return the bytes in each tier; local copies count as warm."""
    sums = {"warm": 0, "cold": 0}
    for facts in partitions:
        sums["warm"] += sum(item.local_bytes for item in facts.segments)
        sums["warm"] += sum(item.bytes for item in facts.copies)
        sums["cold"] += sum(item.bytes for item in facts.objects)
    return sums


def outlook(partitions: Iterable[PartitionFacts], actions: Iterable[Action]) -> tuple[TierBytes, TierBytes]:
    """Return the bytes in the warm and the cold tier, before and after all `actions`."""
    warm, cold = bytes_by_tier(partitions).values()
    warm_after, cold_after = warm, cold
    for action in actions:
        cold_after += action.cold_bytes_delta
        if isinstance(action, (EvictLocal, Demote)):
            warm_after -= action.bytes
        elif isinstance(action, Promote):
            warm_after += action.bytes
        elif isinstance(action, Expire):
            # `bytes` counts both tiers, and the delta those of the bucket.
            warm_after -= action.bytes + action.cold_bytes_delta
    return TierBytes("warm", warm, max(0, warm_after)), TierBytes("cold", cold, max(0, cold_after))
