"""What a plan can ask for, one frozen class a kind.

A new kind is a class here, a rule that yields it for ``draft.py`` and a method of `ActionPort` in
``executor.py`` that is called as the kind is.
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
    """One step for one partition; safe to repeat and safe to kill at any instruction.

    Attributes
    ----------
    segment_id
        The segment it is about; ``None`` where it is about a range.
    base_offset, end_offset
        The records it is about, end exclusive.
    bytes
        What it reads, moves or frees, estimated from the local files.
    cold_bytes_delta
        By how much the bucket grows; negative where it shrinks.
    reason
        The rule and the fact that met, for people.
    """

    kind: ClassVar[str]
    publishes: ClassVar[bool] = False  # changes the partition's manifest
    whole_store: ClassVar[bool] = False  # of no partition: `WHOLE_STORE` stands for topic and partition

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
        """Return plain JSON values, the kind under ``action``."""
        values = {"action": self.kind, **asdict(self)}
        values = {name: str(value) if isinstance(value, UUID) else value for name, value in values.items()}
        if self.whole_store:
            values["topic"] = values["partition"] = None
        return values

    def place(self) -> tuple[str, str, str]:
        """Return topic, partition and offsets as tables show them."""
        if self.whole_store:
            return "-", "-", "-"
        return self.topic, str(self.partition), f"[{self.base_offset}, {self.end_offset})"

    def __str__(self) -> str:
        where = "" if self.whole_store else " {}/{} {}".format(*self.place())
        return f"{self.kind}{where} {approximate_size(self.bytes)}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal(Action):
    """Seal the active segment and roll to a new one."""

    kind = "seal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire(Action):
    """Delete everything before ``end_offset``, which becomes the start offset, in every tier.

    ``base_offset`` is the start offset before; equal to ``end_offset`` where only what earlier deletions
    left behind is removed.

    Attributes
    ----------
    topic_id
        The topic that was looked at: one that took its name since keeps its records.
    begins_manifest
        Publish a first manifest where the bucket has none: without it a restore would begin at offset 0 again.
    """

    kind = "expire"
    publishes = True
    topic_id: UUID | None = None
    begins_manifest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload(Action):
    """Publish a sealed segment as one object, which replaces the tails shipped of it."""

    kind = "offload"
    publishes = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipTail(Action):
    """Publish durable records of a segment that cannot be offloaded as a whole yet.

    Of no records, where ``base_offset`` is ``end_offset``: publish that the log begins there. What lies before was
    deleted, and the bucket never had all of it.
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
class Merge(Action):
    """Write the records of adjacent objects into one, and publish it in their place.

    Attributes
    ----------
    names
        The objects, in the order of their offsets.
    """

    kind = "merge"
    publishes = True
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeClass(Action):
    """Copy an object under a new name into another storage class, and publish the copy in its place.

    Attributes
    ----------
    name
        The object.
    source_class, storage_class
        From where and whereto.
    """

    kind = "change_class"
    publishes = True
    name: str
    source_class: str
    storage_class: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote(Action):
    """Copy an object to the local disk, where readers find it; the object stays what it is."""

    kind = "promote"
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Demote(Action):
    """Delete the local copy of an object; the log loses nothing by it."""

    kind = "demote"
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrub(Action):
    """Look whether the objects of a range are there and are what the manifest says.

    Attributes
    ----------
    round
        Counts from 1; one round looks at every object once.
    deep
        Read every byte, also where the server keeps a checksum of the whole object.
    completes
        Whether the round ends with this range.
    planned_us
        The time that was planned for.
    """

    kind = "scrub"
    planned_us: int
    round: int
    deep: bool
    completes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(Action):
    """Delete from the bucket what no manifest names any more, in every partition and of deleted topics."""

    kind = "sweep"
    whole_store = True
    planned_us: int
