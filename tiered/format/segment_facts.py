"""What a segment says of itself, the same in a local footer, in Parquet metadata and in a manifest.

Times are integers, microseconds since the epoch, UTC. End offsets are exclusive.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The last thing seen of one idempotent producer (KIP-98).

    Attributes
    ----------
    last_sequence, last_offset
        Of its last record; -1 where it only began an epoch.
    run_length
        So many of its last records, that one included, lie one after the other in both number and offset.
    last_append_us
        When it was last seen: the append time of that block.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    run_length: int = 1
    last_append_us: int = 0


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """Identity, range and history of one segment.

    Attributes
    ----------
    segment_id
        Survives re-encoding and offload; eviction compares it (promise P5).
    generation
        Raised by one at each local re-encoding.
    lineage_epoch
        Epoch of the lineage in which the segment was first written.
    last_append_us
        Wall clock of the last append; every age in a policy counts from it, through every rewrite.
    origin_hash, prev_origin_hash
        Content hash of this and of the previous segment as first sealed: the chain that proves
        continuity. Hex; empty where unknown.
    content_hash
        Hash of the blocks as they are stored now (`ContentHash`), hex.
    end_hash
        Of a shipped tail: content hash of the segment, as first written, from its first block to the tail's end. Hex;
        empty where unknown, and of whole segments, whose `origin_hash` it is.
    start_offset
        Start offset of the partition at the time of sealing.
    """

    store_id: UUID
    topic_id: UUID
    segment_id: UUID
    partition: int
    generation: int
    schema_id: int
    base_offset: int
    end_offset: int
    record_count: int
    min_timestamp_us: int
    max_timestamp_us: int
    created_us: int
    last_append_us: int
    lineage_epoch: int = 0
    start_offset: int = 0
    origin_hash: str = ""
    prev_origin_hash: str = ""
    content_hash: str = ""
    replaces: tuple[UUID, ...] = ()
    producers: tuple[ProducerState, ...] = ()
    end_hash: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; UUIDs as text."""
        values = asdict(self)
        if not self.end_hash:
            del values["end_hash"]  # of tails alone
        for name in ("store_id", "topic_id", "segment_id"):
            values[name] = str(values[name])
        values["replaces"] = [str(item) for item in self.replaces]
        values["producers"] = [asdict(item) for item in self.producers]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> SegmentFacts:
        """Build from `to_json`'s result; unknown keys of later minor versions are ignored.

        Raises
        ------
        KeyError, ValueError, TypeError
            A key is missing or not of its type; callers turn this into `CorruptionError`.
        """
        if not isinstance(values, dict):
            raise TypeError("facts are an object")
        known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        for name in ("store_id", "topic_id", "segment_id"):
            known[name] = UUID(_typed(values[name], str))
        known["replaces"] = tuple(UUID(_typed(item, str)) for item in values.get("replaces", ()))
        known["producers"] = producers_from_json(values.get("producers", ()))
        facts = cls(**known)
        for field in fields(cls):
            if field.type in ("int", "str"):
                _typed(getattr(facts, field.name), int if field.type == "int" else str)
        return facts

    def evolve(self, **changes: Any) -> SegmentFacts:
        """Return a copy with `changes`."""
        return replace(self, **changes)


def producers_from_json(values: Any) -> tuple[ProducerState, ...]:
    """Build the states of producers; unknown keys are ignored.

    Raises
    ------
    ValueError, TypeError
        A key is missing or not of its type.
    """
    try:
        return tuple(
            _state(
                item["producer_id"], item["epoch"], item["last_sequence"], item["last_offset"],
                item.get("run_length", 1), item.get("last_append_us", 0),
            )
            for item in values
        )  # fmt: skip
    except KeyError as error:
        raise TypeError(f"a producer lacks {error}") from None


# One object for all that are equal: the segments of a partition say the same of each producer that is idle.
@lru_cache(maxsize=8192, typed=True)
def _state(*numbers: int) -> ProducerState:
    for number in numbers:
        _typed(number, int)
    return ProducerState(*numbers)


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind or (type(value) is int and not -(1 << 63) <= value < 1 << 63):
        raise TypeError(f"{str(value)[:60]!r} is not of type {kind.__name__}, or has more than 64 bits")
    return value
