"""The facts of a segment, which are the same in a local footer, in Parquet metadata and in a manifest.

Times are integers, microseconds since the epoch, UTC. End offsets are exclusive.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The state of one idempotent producer (KIP-98).

    Attributes
    ----------
    last_sequence, last_offset
        Number and offset of its last record; -1 if it only began an epoch.
    run_length
        Number of its last records, including that one, that are consecutive in both number and offset.
    last_append_us
        Append time of the last block in which it was seen.
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
        Unchanged by re-encoding and offload; eviction compares it (promise P5).
    generation
        Raised by one at each local re-encoding.
    lineage_epoch
        Epoch of the lineage in which the segment was first written.
    last_append_us
        Wall clock of the last append, unchanged by rewrites; every age in a policy counts from it.
    origin_hash, prev_origin_hash
        Content hash of this and of the previous segment as first sealed: the chain that proves continuity. Hexadecimal;
        empty if unknown.
    content_hash
        Hash of the blocks as stored now (`ContentHash`), hexadecimal.
    end_hash
        For a shipped tail: content hash of the segment, as first written, from its first block to the tail's end,
        hexadecimal. Empty if unknown, and for whole segments, which have `origin_hash`.
    start_offset
        Start offset of the partition at the time of sealing.
    compacted_offset
        The object may lack records that are superseded by records before this offset; 0: none was compacted.
    compacted_us
        When it was last compacted; 0: never, or unknown.
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
    compacted_offset: int = 0
    compacted_us: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, with UUIDs as text."""
        values = asdict(self)
        if not self.end_hash:
            del values["end_hash"]  # only tails have it
        for name in ("compacted_offset", "compacted_us"):
            if not values[name]:
                del values[name]
        for name in ("store_id", "topic_id", "segment_id"):
            values[name] = str(values[name])
        values["replaces"] = list(map(str, self.replaces))
        values["producers"] = list(map(asdict, self.producers))
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> SegmentFacts:
        """Invert `to_json`; unknown keys, of later minor versions, are ignored.

        Raises
        ------
        KeyError, ValueError, TypeError
            A key is missing or has another type; callers translate this into `CorruptionError`.
        """
        if not isinstance(values, dict):
            raise TypeError("facts are an object")
        arguments = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        for name in ("store_id", "topic_id", "segment_id"):
            arguments[name] = UUID(_typed(values[name], str))
        arguments["replaces"] = tuple(UUID(_typed(other, str)) for other in values.get("replaces", ()))
        arguments["producers"] = producers_from_json(values.get("producers", ()))
        facts = cls(**arguments)
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
        A key is missing or has another type.
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


# Cached, since all segments of a partition have equal states of an idle producer.
@lru_cache(maxsize=8192, typed=True)
def _state(*numbers: int) -> ProducerState:
    for number in numbers:
        _typed(number, int)
    return ProducerState(*numbers)


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind or (type(value) is int and not -(1 << 63) <= value < 1 << 63):
        raise TypeError(f"{str(value)[:60]!r} is not of type {kind.__name__}, or has more than 64 bits")
    return value
