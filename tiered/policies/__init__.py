"""When data moves: facts + rules + now -> plan (pure), and the executor that carries a plan out.

``rules`` is what ``tiered.toml`` says of a topic, ``facts`` is what the store knows, ``plan`` decides,
``executor`` acts through a port that the store implements.
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
from .rules import PRESETS, Policy

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
