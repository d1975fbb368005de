"""The rules of a policy: when a topic's data is sealed, compressed, offloaded, evicted, merged, scrubbed and expired.

Every age counts from the last append of a segment, except ``retention`` with ``by = "timestamp"``. Limits in
bytes hold for each partition, as Kafka's ``retention.bytes`` does. ``None`` (written ``off``) means never, or
no limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..units import DurationOrOff, PositiveDurationOrOff, PositiveSize, PositiveSizeOrOff, SizeOrOff


class _Rule(BaseModel):
    """One inline table of a policy; the whole of it can be written as ``"off"``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    limits: ClassVar[tuple[str, ...]]

    @model_validator(mode="before")
    @classmethod
    def _all_off(cls, value: Any) -> Any:
        return dict.fromkeys(cls.limits) if value == "off" else value


class Roll(_Rule):
    """Seal the active segment once it has so many bytes, or its first record is so old."""

    limits = ("bytes", "age")
    bytes: PositiveSizeOrOff = 256 << 20
    age: PositiveDurationOrOff = timedelta(hours=1)


class Compress(_Rule):
    """Re-encode a sealed segment on the local disk, so long after its last append.

    ``level=None`` is the codec's own default.
    """

    limits = ("after",)
    codec: Literal["none", "lz4", "zstd"] = "zstd"
    level: Annotated[int | None, Field(ge=-7, le=22)] = None
    after: DurationOrOff = timedelta(minutes=1)


class Offload(_Rule):
    """Copy sealed segments, so long after their last append, and the active tail to the cold tier."""

    limits = ("after", "tail_interval")
    after: DurationOrOff = timedelta(minutes=10)
    tail_interval: DurationOrOff = timedelta(seconds=10)


class LocalRetention(_Rule):
    """Delete the local copy of offloaded segments that are so old, or are more than so many bytes."""

    limits = ("age", "bytes")
    age: DurationOrOff = None
    bytes: SizeOrOff = None


class Retention(_Rule):
    """Delete data for good, in every tier, once it is so old, or more than so many bytes; default never.

    ``by``: ages count from the last append, or from the records' own timestamps.
    """

    limits = ("age", "bytes")
    age: PositiveDurationOrOff = None
    bytes: PositiveSizeOrOff = None
    by: Literal["append", "timestamp"] = "append"


class Merge(_Rule):
    """Join small neighbours in the cold tier into objects of at most ``target_bytes``, so long after their last append.

    An object of half the target or more is left as it is.
    """

    limits = ("target_bytes", "after")
    target_bytes: PositiveSizeOrOff = 256 << 20
    after: DurationOrOff = timedelta(hours=6)


class Scrub(_Rule):
    """Look at every cold object again, once in ``every``, so many bytes of objects a pass and partition."""

    limits = ("every",)
    every: PositiveDurationOrOff = timedelta(days=30)
    bytes_per_pass: PositiveSize = 1 << 30


class Policy(BaseModel):
    """All rules of one topic, resolved. Nothing expires unless a ``retention`` says so."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    roll: Roll = Roll()
    compress: Compress = Compress(level=3)
    offload: Offload = Offload()
    local_retention: LocalRetention = LocalRetention(age=timedelta(hours=6), bytes=50 << 30)
    retention: Retention = Retention()
    merge: Merge = Merge()
    scrub: Scrub = Scrub()


PRESETS: Mapping[str, Policy] = MappingProxyType(
    {
        # Much stays local and cheap to decode; the bucket is seconds behind.
        "high-performance": Policy(
            roll=Roll(bytes=512 << 20, age=timedelta(hours=1)),
            compress=Compress(codec="lz4", after=timedelta(minutes=10)),
            offload=Offload(after=timedelta(minutes=10), tail_interval=timedelta(seconds=5)),
            local_retention=LocalRetention(age=timedelta(days=7), bytes=500 << 30),
        ),
        # Few, large objects, few requests and little local disk; the bucket is minutes behind.
        "cost-optimized": Policy(
            roll=Roll(bytes=512 << 20, age=timedelta(hours=6)),
            compress=Compress(codec="zstd", level=9, after=timedelta(minutes=1)),
            offload=Offload(after=timedelta(0), tail_interval=timedelta(minutes=5)),
            local_retention=LocalRetention(age=timedelta(minutes=30), bytes=5 << 30),
        ),
    }
)
