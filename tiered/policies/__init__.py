"""The policies: pure rules that turn facts and the time into a plan, and the executor that carries a plan out.

``policy`` has the rules of a topic from ``tiered.toml``, ``facts`` the facts about a store. ``rules`` and ``plan`` decide;
``executor`` calls the handler of each action, and `tiering` has the handlers.

Other packages import `actions`, `cost`, `executor`, `facts`, `forecast`, `outlook`, `plan`, `policy`,
`replan`, `rules`, `running`, `tail_joining`, `tail_pace` and `turns`.
"""

from .actions import (
    Action,
    ChangeClass,
    Compress,
    Cut,
    Demote,
    EvictLocal,
    Expire,
    Merge,
    Offload,
    Promote,
    Rewrite,
    Scrub,
    Seal,
    ShipTail,
    Sweep,
)
from .cost import Cost, Requests
from .executor import Executor, Handler, TierReport
from .facts import ColdObjectFact, CopyFact, ObjectFact, PartitionFacts, ScrubFact, SegmentFact, StoreFacts
from .plan import Plan, make_plan
from .policy import PRESETS, Policy

__all__ = [
    "PRESETS",
    "Action",
    "ChangeClass",
    "ColdObjectFact",
    "Compress",
    "CopyFact",
    "Cost",
    "Cut",
    "Demote",
    "EvictLocal",
    "Executor",
    "Expire",
    "Handler",
    "Merge",
    "ObjectFact",
    "Offload",
    "PartitionFacts",
    "Plan",
    "Policy",
    "Promote",
    "Requests",
    "Rewrite",
    "Scrub",
    "ScrubFact",
    "Seal",
    "SegmentFact",
    "ShipTail",
    "StoreFacts",
    "Sweep",
    "TierReport",
    "make_plan",
]
