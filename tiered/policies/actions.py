"""The actions of a plan, a frozen class for each kind.

A new kind needs a class here, a rule that yields it for ``rules/partition_plan.py``, and a handler in `tiering`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar
from uuid import UUID

from ..base.units import approximate_size
from .cost import Requests

WHOLE_STORE = ("", -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One step for one partition; it may be killed at any instruction and repeated.

    Attributes
    ----------
    segment_id
        The segment that it changes; None for an action on a range.
    base_offset, end_offset
        The range of its records; the end is exclusive.
    bytes
        Bytes that it reads, moves or frees, estimated from the local files.
    cold_bytes_delta
        The growth of the bucket; negative if it shrinks.
    reason
        The rule and the fact behind it, for people.
    """

    kind: ClassVar[str]
    publishes: ClassVar[bool] = False  # changes the partition's manifest
    whole_store: ClassVar[bool] = False  # has no partition; topic and partition are `WHOLE_STORE`

    topic: str
    partition: int
    segment_id: UUID | None
    base_offset: int
    end_offset: int
    bytes: int
    reason: str
    cold_bytes_delta: int = 0
    requests: Requests = field(default_factory=Requests)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, with the kind as ``action``."""
        values = {"action": self.kind, **asdict(self)}
        values = {name: str(value) if isinstance(value, UUID) else value for name, value in values.items()}
        if self.whole_store:
            values["topic"] = values["partition"] = None
        return values

    def location(self) -> tuple[str, str, str]:
        """Return topic, partition and offsets as text for tables."""
        if self.whole_store:
            return "-", "-", "-"
        return self.topic, str(self.partition), f"[{self.base_offset}, {self.end_offset})"

    def __str__(self) -> str:
        where = "" if self.whole_store else " {}/{} {}".format(*self.location())
        return f"{self.kind}{where} {approximate_size(self.bytes)}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal(Action):
    """Seal the active segment and begin the next one."""

    kind = "seal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire(Action):
    """Delete all records before ``end_offset``, which becomes the start offset, in every tier.

    ``base_offset`` is the previous start offset. It equals ``end_offset`` if only the leftovers of earlier deletions are
    removed.

    Attributes
    ----------
    topic_id
        The surveyed topic: a newer topic of the same name keeps its records.
    begins_manifest
        Publish a first manifest if the bucket has none: without it a restore would begin at offset 0 again.
    """

    kind = "expire"
    publishes = True
    topic_id: UUID | None = None
    begins_manifest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload(Action):
    """Publish a sealed segment as one object, which replaces its shipped tails."""

    kind = "offload"
    publishes = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipTail(Action):
    """Publish durable records of a segment that cannot be offloaded as a whole yet.

    Without records, with ``base_offset`` equal to ``end_offset``: publish that the log begins there. The records before
    it were deleted, and the bucket never had all of them.
    """

    kind = "ship_tail"
    publishes = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictLocal(Action):
    """Delete the local file of a segment that is published under its own id (promise P5)."""

    kind = "evict_local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compress(Action):
    """Re-encode a sealed segment on the local disk."""

    kind = "compress"
    codec: str
    level: int | None
    block_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite(Action):
    """Write the records of adjacent objects from ``base_offset`` on into one, and publish it in place of them.

    Attributes
    ----------
    names
        The objects in offset order.
    """

    publishes = True
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Rewrite):
    """Write all records of several small objects into one."""

    kind = "merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(Rewrite):
    """Write the object in which the log begins again, without the records before the start offset."""

    kind = "cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class Erase(Action):
    """Write the objects of a range that hold records of open erasures again, without these records.

    The local files of such an object are deleted first, once they are proven to be in the bucket.
    """

    kind = "erase"
    publishes = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Compact(Action):
    """Write the objects of a range again without the records that a later record of the same key supersedes.

    The local files of such an object are deleted first, once they are proven to be in the bucket.

    Attributes
    ----------
    tombstone_offset
        Tombstones before this offset go as well.
    """

    kind = "compact"
    publishes = True
    tombstone_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeClass(Action):
    """Copy an object under a new name into another storage class, and publish the copy in place of it.

    Attributes
    ----------
    name
        The object.
    source_class, storage_class
        The old and the new storage class.
    """

    kind = "change_class"
    publishes = True
    name: str
    source_class: str
    storage_class: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote(Action):
    """Make a local copy of an object, which readers then use; the object is unchanged."""

    kind = "promote"
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Demote(Action):
    """Delete the local copy of an object; no record is lost."""

    kind = "demote"
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrub(Action):
    """Check that the objects of a range exist and agree with the manifest.

    Attributes
    ----------
    round
        Number of the round, from 1; a round checks every object once.
    deep
        Read every byte, even if the server stores a checksum of the whole object.
    completes
        Whether the round ends with this range.
    planned_us
        The time of the plan.
    """

    kind = "scrub"
    planned_us: int
    round: int
    deep: bool
    completes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(Action):
    """Delete orphans from the bucket, in every partition, and the objects of deleted topics."""

    kind = "sweep"
    whole_store = True
    planned_us: int
