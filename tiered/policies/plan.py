"""The plan of a store, made from facts, rules and a time. Pure: no I/O, no clock.

The order of actions within a partition makes failures and crashes between them safe:

1. ``seal``: the next pass plans further actions on the sealed segment, from new facts.
2. ``expire``: raises the start offset first, so that no expired record is uploaded and no gap precedes an offload.
3. ``offload`` and ``ship_tail``, oldest first: the manifest never covers a record after a gap.
4. ``evict_local`` and ``demote``: only records that were published according to the facts, never those that this plan
   publishes. While the disk is short, they precede step 3, and partitions that free room come first.
5. ``compress``: it needs room that the others free. The cold tier does not profit from it, since Parquet is encoded from
   the records.
6. ``erase``, ``compact``, ``cut``, ``merge``, ``change_class``, ``promote``, then ``scrub``: they take long and can wait.

``sweep`` belongs to no partition and comes last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import reduce
from typing import Any

from ..base.units import approximate_size
from .actions import Action, ChangeClass, Expire
from .cost import PRICES_AS_OF, Cost, Requests, class_change_cost, estimate
from .facts import StoreFacts
from .outlook import TierBytes
from .policy import Policy
from .rules.partition_plan import PartitionPlan, promote, relieve_disk
from .rules.sweep import sweep
from .tail_pace import TailPace


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions of the policies at ``now_us``, in a safe order.

    Attributes
    ----------
    notes
        The obstacles to actions, one line each.
    waiting
        The records that retention leaves because consumers have not read them, one line for each partition.
    tiers
        The bytes in each tier before and after the plan; empty if they were not requested.
    tails
        The pace of the busy partitions; None if none is busy, or without a bucket.
    """

    now_us: int
    actions: tuple[Action, ...] = ()
    notes: tuple[str, ...] = ()
    storage_class: str = "STANDARD"
    tiers: tuple[TierBytes, ...] = ()
    tails: TailPace | None = None
    waiting: tuple[str, ...] = ()

    COLUMNS = ("action", "topic", "partition", "offsets", "size", "requests", "reason")

    @property
    def bytes(self) -> int:
        """The sum of the bytes that all actions read, move or free."""
        return sum(action.bytes for action in self.actions)

    @property
    def upload_bytes(self) -> int:
        """The most bytes to upload, estimated from the local files; Parquet is usually smaller.

        An erasure or a compaction counts with all objects of its range, though it writes only those again that have such records.
        """
        return sum(
            action.bytes for action in self.actions if action.publishes and not isinstance(action, Expire)
        )

    @property
    def requests(self) -> Requests:
        """The requests to the bucket."""
        return reduce(Requests.__add__, (action.requests for action in self.actions), Requests())

    @property
    def cost(self) -> Cost:
        """The one-off cost of the requests, and the monthly cost of the bucket's change, by list price."""
        moves = [item for item in self.actions if isinstance(item, ChangeClass)]
        others = [item for item in self.actions if not isinstance(item, ChangeClass)]
        delta = sum(action.cold_bytes_delta for action in others)
        requests = reduce(Requests.__add__, (action.requests for action in others), Requests())
        costs = [
            estimate(requests, delta, self.storage_class),
            *(
                class_change_cost(item.requests, item.bytes, item.source_class, item.storage_class)
                for item in moves
            ),
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
            "waiting": list(self.waiting),
            "tiers": [asdict(item) for item in self.tiers],
            "tails": None if self.tails is None else asdict(self.tails),
            "totals": {
                "actions": counts,
                "bytes": self.bytes,
                "upload_bytes": self.upload_bytes,
                "requests": asdict(self.requests),
                "cost": {**asdict(self.cost), "prices": f"S3 {self.storage_class} {PRICES_AS_OF}"},
            },
        }

    def describe(self) -> list[tuple[str, ...]]:
        """Return a row of text for each action, with the columns `Plan.COLUMNS`."""
        return [
            (
                action.kind,
                *action.location(),
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
    """Return the plan of the policies.

    Parameters
    ----------
    facts
        The facts about the store.
    policy_for
        Returns the resolved policy of a topic by its name; `Settings.policy_for`.
    now_us
        The time of the plan; by default the time of the facts.
    sweep_every
        The interval of sweeps; None for never.
    """
    now = facts.now_us if now_us is None else now_us
    plans = [PartitionPlan(item, policy_for(item.topic), facts, now) for item in facts.partitions]
    relieve_disk(facts, plans)
    promote(facts, plans)
    return Plan(
        now_us=now,
        actions=(
            *(action for plan in sorted(plans, key=_frees_no_disk) for action in plan.actions()),
            *sweep(facts, sweep_every, now),
        ),
        notes=tuple(note for plan in plans for note in plan.notes),
        storage_class=facts.storage_class,
        waiting=tuple(plan.waiting for plan in plans if plan.waiting is not None),
    )


def _frees_no_disk(plan: PartitionPlan) -> bool:
    return not plan.frees_disk()
