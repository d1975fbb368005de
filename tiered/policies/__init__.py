"""When data moves: facts + rules + now -> plan (pure), and the executor that carries a plan out.

``policy`` is what ``tiered.toml`` says of a topic, ``facts`` is what the store knows, ``rules`` and ``plan`` decide,
``executor`` acts through a port that the store implements.

Other packages import `actions`, `cost`, `executor`, `facts`, `forecast`, `outlook`, `plan`, `policy`,
`replan`, `rules`, `running` and `shipping`.
"""

from .actions import (
    Action,
    ChangeClass,
    Compress,
    Demote,
    EvictLocal,
    Expire,
    Merge,
    Offload,
    Promote,
    Scrub,
    Seal,
    ShipTail,
    Sweep,
)
from .cost import Cost, Requests
from .executor import ActionPort, Executor, TierReport
from .facts import ColdObjectFact, CopyFact, ObjectFact, PartitionFacts, ScrubFact, SegmentFact, StoreFacts
from .plan import Plan, make_plan
from .policy import PRESETS, Policy

__all__ = [
    "PRESETS",
    "Action",
    "ActionPort",
    "ChangeClass",
    "ColdObjectFact",
    "Compress",
    "CopyFact",
    "Cost",
    "Demote",
    "EvictLocal",
    "Executor",
    "Expire",
    "Merge",
    "ObjectFact",
    "Offload",
    "PartitionFacts",
    "Plan",
    "Policy",
    "Promote",
    "Requests",
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
