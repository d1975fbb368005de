"""How many bytes each tier holds before a plan and after it: pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .actions import Action, EvictLocal, Expire
from .facts import PartitionFacts


@dataclass(frozen=True, slots=True)
class TierBytes:
    """One tier: ``warm``, the local disk, or ``cold``, the bucket.

    ``after`` is an estimate: what is uploaded counts with its local size, and compression is left out.
    """

    tier: str
    before: int
    after: int


def outlook(partitions: Iterable[PartitionFacts], actions: Iterable[Action]) -> tuple[TierBytes, TierBytes]:
    """Return warm and cold, once every one of `actions` is done."""
    warm = cold = 0
    for facts in partitions:
        warm += sum(item.local_bytes for item in facts.segments)
        cold += sum(item.bytes for item in facts.objects)
    warm_after, cold_after = warm, cold
    for action in actions:
        cold_after += action.cold_bytes_delta
        if isinstance(action, EvictLocal):
            warm_after -= action.bytes
        elif isinstance(action, Expire):
            warm_after -= (
                action.bytes + action.cold_bytes_delta
            )  # bytes of both tiers, less those of the bucket
    return TierBytes("warm", warm, max(0, warm_after)), TierBytes("cold", cold, max(0, cold_after))
