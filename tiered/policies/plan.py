"""Facts, rules and a time in; a plan out. Pure: no I/O, no clock.

The order within a partition is chosen for what happens when a step fails or the process dies there:

1. ``seal``: what becomes immutable now is planned further in the next pass, from new facts.
2. ``expire``: moves the start offset first, so that nothing expired is uploaded and no gap is left before
   what is offloaded.
3. ``offload`` and ``ship_tail``, oldest first: the manifest never covers a record after a gap.
4. ``evict_local`` and ``demote``: only what the facts already showed as published, never what this plan is to
   publish. While the disk is short they come before 3, and partitions that free some come first.
5. ``compress``: it needs room that the others free, and the cold tier does not profit from it (its Parquet
   is encoded from the records).
6. ``merge``, ``change_class``, ``promote``, then ``scrub``: they can wait, and take long.

``sweep`` is of no partition and comes when the others are done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import reduce
from typing import Any

from ..base.units import approximate_size
from .actions import (
    Action,
    ChangeClass,
    Merge,
    Offload,
    ShipTail,
)
from .cost import PRICES_AS_OF, Cost, Requests, estimate, moving
from .facts import StoreFacts
from .outlook import TierBytes
from .policy import Policy
from .rules.partition_plan import PartitionPlan, promote, relieve_disk
from .rules.sweep import sweep


@dataclass(frozen=True, slots=True)
class Plan:
    """What the policies would do at ``now_us``, in the order in which it is safe.

    Attributes
    ----------
    notes
        What stands in the way of an action, one line each; empty when all is well.
    tiers
        What each tier holds before and after it; empty where that was not asked for.
    """

    now_us: int
    actions: tuple[Action, ...] = ()
    notes: tuple[str, ...] = ()
    storage_class: str = "STANDARD"
    tiers: tuple[TierBytes, ...] = ()

    COLUMNS = ("action", "topic", "partition", "offsets", "size", "requests", "reason")

    @property
    def bytes(self) -> int:
        """What all actions together read, move or free."""
        return sum(action.bytes for action in self.actions)

    @property
    def upload_bytes(self) -> int:
        """What goes to the bucket, estimated from the local files; Parquet is usually smaller."""
        kinds = (Offload, ShipTail, Merge, ChangeClass)
        return sum(item.bytes for item in self.actions if isinstance(item, kinds))

    @property
    def requests(self) -> Requests:
        """Requests to the bucket."""
        return reduce(Requests.__add__, (action.requests for action in self.actions), Requests())

    @property
    def cost(self) -> Cost:
        """What the requests cost once, and the change of the bucket a month, by list price."""
        moves = [item for item in self.actions if isinstance(item, ChangeClass)]
        others = [item for item in self.actions if not isinstance(item, ChangeClass)]
        delta = sum(action.cold_bytes_delta for action in others)
        requests = reduce(Requests.__add__, (action.requests for action in others), Requests())
        costs = [
            estimate(requests, delta, self.storage_class),
            *(moving(item.requests, item.bytes, item.source_class, item.storage_class) for item in moves),
        ]
        return Cost(sum(item.one_off_usd for item in costs), sum(item.monthly_usd for item in costs))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: actions, notes and totals."""
        counts: dict[str, int] = {}
        for action in self.actions:
            counts[action.kind] = counts.get(action.kind, 0) + 1
        return {
            "now_us": self.now_us,
            "actions": [action.to_json() for action in self.actions],
            "notes": list(self.notes),
            "tiers": [asdict(item) for item in self.tiers],
            "totals": {
                "actions": counts,
                "bytes": self.bytes,
                "upload_bytes": self.upload_bytes,
                "requests": asdict(self.requests),
                "cost": {**asdict(self.cost), "prices": f"S3 {self.storage_class} {PRICES_AS_OF}"},
            },
        }

    def describe(self) -> list[tuple[str, ...]]:
        """Return one row of text an action, under `Plan.COLUMNS`."""
        return [
            (
                action.kind,
                *action.place(),
                approximate_size(action.bytes),
                str(action.requests.writes + action.requests.reads),
                action.reason,
            )
            for action in self.actions
        ]


def make_plan(
    facts: StoreFacts,
    policy_for: Callable[[str], Policy],
    now_us: int | None = None,
    *,
    sweep_every: timedelta | None = None,
) -> Plan:
    """Return what the policies ask for.

    Parameters
    ----------
    facts
        What the store gathered.
    policy_for
        The resolved policy of a topic, by its name; `Settings.policy_for`.
    now_us
        The time to plan for; default is when the facts were gathered.
    sweep_every
        How often the bucket is swept; None for never.
    """
    now = facts.now_us if now_us is None else now_us
    drafts = [PartitionPlan(item, policy_for(item.topic), facts, now) for item in facts.partitions]
    relieve_disk(facts, drafts)
    promote(facts, drafts)
    return Plan(
        now_us=now,
        actions=(
            *(action for draft in sorted(drafts, key=_frees_no_disk) for action in draft.actions()),
            *sweep(facts, sweep_every, now),
        ),
        notes=tuple(note for draft in drafts for note in draft.notes),
        storage_class=facts.storage_class,
    )


def _frees_no_disk(draft: PartitionPlan) -> bool:
    return not draft.frees_disk()
