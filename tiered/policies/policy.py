"""The rules of a policy: when a topic's data is sealed, compressed, moved, kept, merged, scrubbed and expired.

Every age counts from the last append of a segment, except ``retention`` with ``by = "timestamp"``. Limits in
bytes hold for each partition, as Kafka's ``retention.bytes`` does. ``None`` (written ``off``) means never, or
no limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    field_validator,
    model_validator,
)

from ..base.units import (
    DurationOrOff,
    Floor,
    FloorOrOff,
    Moment,
    PositiveDuration,
    PositiveDurationOrOff,
    PositiveSize,
    PositiveSizeOrOff,
    Size,
    SizeOrOff,
    format_size,
)
from ..format.block import RAW_BYTES_MAX

_EPOCH = datetime.fromtimestamp(0, UTC)


class _Rule(BaseModel):
    """One inline table of a policy; the whole of it can be written as ``"off"``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    limits: ClassVar[tuple[str, ...]]

    @model_validator(mode="before")
    @classmethod
    def _all_off(cls, value: Any) -> Any:
        return dict.fromkeys(cls.limits) if value == "off" else value


def readable_class(name: str) -> str:
    """Return the name of a storage class; refuse those from which nothing can be read at once."""
    if name in ("GLACIER", "DEEP_ARCHIVE"):
        raise ValueError(
            f'{name} cannot be read without a restore first; write "GLACIER_IR" or "STANDARD_IA"'
        )
    return name


def _us(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _fits_a_block(size: int) -> int:
    if size > RAW_BYTES_MAX // 2:
        # A block may end a quarter above its target.
        raise ValueError(f"is at most {format_size(RAW_BYTES_MAX // 2)}, half the limit of the format")
    return size


class Roll(_Rule):
    """Seal the active segment once it has so many bytes, or its first record is so old."""

    limits = ("bytes", "age")
    bytes: PositiveSizeOrOff = 256 << 20
    age: PositiveDurationOrOff = timedelta(hours=1)


class CompressRule(_Rule):
    """Re-encode a sealed segment on the local disk, so long after its last append, into blocks of about ``block_bytes``.

    ``level=None`` is the codec's own default. Files of less than ``min_bytes`` stay as they are.
    """

    limits = ("after",)
    codec: Literal["none", "lz4", "zstd"] = "zstd"
    level: Annotated[int | None, Field(ge=-7, le=22)] = None
    after: DurationOrOff = timedelta(minutes=1)
    min_bytes: Size = 0
    block_bytes: Annotated[PositiveSize, AfterValidator(_fits_a_block)] = 1 << 20


class OffloadRule(_Rule):
    """Copy sealed segments, so long after their last append, and the active tail to the cold tier.

    Sooner, the oldest first, where more than so many ``bytes`` of sealed segments wait for it, and while the disk
    has less free than ``local_retention.free_disk``. ``after = "off"`` offloads nothing.
    """

    limits = ("after", "tail_interval")
    after: DurationOrOff = timedelta(minutes=10)
    tail_interval: DurationOrOff = timedelta(seconds=10)
    bytes: SizeOrOff = None


class LocalRetention(_Rule):
    """Delete the local copy of offloaded segments that are so old, or are more than so many bytes.

    And, the oldest of all topics first, while the disk has less free than ``free_disk``, a size or a share
    such as ``"5%"``. What is not offloaded stays in any case.
    """

    # Without a floor a full disk stops appends, so to switch that off it has to be named.
    limits = ("age", "bytes")
    age: DurationOrOff = None
    bytes: SizeOrOff = None
    free_disk: FloorOrOff = Floor(percent=Fraction(5))


class Pin(_Rule):
    """Keep data on the local disk, whatever ``local_retention`` says.

    What was appended within ``age``, or with ``topic = "on"`` (for short ``pin = "on"``) all segments that are
    there. ``since`` and ``until`` (exclusive) are record timestamps: objects of that time are copied to the local
    disk, and stay there.
    """

    limits = ("age", "topic")
    age: PositiveDurationOrOff = None
    topic: bool = False
    since: Moment = None
    until: Moment = None

    @model_validator(mode="before")
    @classmethod
    def _all_on(cls, value: Any) -> Any:
        return {} if value == "off" else {"topic": True} if value == "on" else value

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError("until must be later than since; write a later time, or leave one of them out")
        return self

    def holds(self, min_timestamp_us: int, max_timestamp_us: int) -> bool:
        """Whether records of these times are in the range of time that is pinned."""
        if self.since is None and self.until is None:
            return False
        return (self.since is None or max_timestamp_us >= _us(self.since)) and (
            self.until is None or min_timestamp_us < _us(self.until)
        )


class PromoteRule(_Rule):
    """Copy a cold object to the local disk once its bytes were fetched from the bucket in so many minutes.

    Counted in every process that reads through the local store; a count ends ``within`` so long after the last
    fetch. The copy is dropped when nothing read it for ``keep``, or the least recently read first where copies
    are more than ``bytes`` in a partition, or the disk is short.
    """

    limits = ("reads",)
    reads: Annotated[
        Annotated[int, Field(ge=1)] | None,
        BeforeValidator(lambda value: None if value == "off" else value),
        PlainSerializer(lambda value: "off" if value is None else value, when_used="json"),
    ] = None
    within: PositiveDuration = timedelta(hours=1)
    keep: PositiveDuration = timedelta(days=1)
    bytes: PositiveSize = 10 << 30


class StorageClass(_Rule):
    """Move objects into another storage class of the bucket, so long after their last append.

    An object is copied under a new name, compared and published in place of the old one.
    """

    limits = ("after",)
    name: str = "STANDARD_IA"
    after: PositiveDurationOrOff = None

    @field_validator("name")
    @classmethod
    def _readable(cls, name: str) -> str:
        return readable_class(name)


class Retention(_Rule):
    """Delete data for good, in every tier, once it is so old, or more than so many bytes; default never.

    ``by``: ages count from the last append, or from the records' own timestamps.
    """

    limits = ("age", "bytes")
    age: PositiveDurationOrOff = None
    bytes: PositiveSizeOrOff = None
    by: Literal["append", "timestamp"] = "append"


class MergeRule(_Rule):
    """Join small neighbours in the cold tier into objects of at most ``target_bytes``, so long after their last append.

    An object of half the target or more is left as it is.
    """

    limits = ("target_bytes", "after")
    target_bytes: PositiveSizeOrOff = 256 << 20
    after: DurationOrOff = timedelta(hours=6)


class ScrubRule(_Rule):
    """Look at every cold object again, once in ``every``, so many bytes of objects a pass and partition."""

    limits = ("every",)
    every: PositiveDurationOrOff = timedelta(days=30)
    bytes_per_pass: PositiveSize = 1 << 30


class Policy(BaseModel):
    """All rules of one topic, resolved. Nothing expires unless a ``retention`` says so."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    roll: Roll = Roll()
    compress: CompressRule = CompressRule(level=3)
    offload: OffloadRule = OffloadRule()
    local_retention: LocalRetention = LocalRetention(age=timedelta(hours=6), bytes=50 << 30)
    retention: Retention = Retention()
    merge: MergeRule = MergeRule()
    scrub: ScrubRule = ScrubRule()
    storage_class: StorageClass = StorageClass()
    promote: PromoteRule = PromoteRule()
    pin: Pin = Pin()


PRESETS: Mapping[str, Policy] = MappingProxyType(
    {
        # Much stays local and cheap to decode; the bucket is seconds behind.
        "high-performance": Policy(
            roll=Roll(bytes=512 << 20, age=timedelta(hours=1)),
            compress=CompressRule(codec="lz4", after=timedelta(minutes=10)),
            offload=OffloadRule(after=timedelta(minutes=10), tail_interval=timedelta(seconds=5)),
            local_retention=LocalRetention(age=timedelta(days=7), bytes=500 << 30),
            promote=PromoteRule(reads=3, bytes=50 << 30),
        ),
        # Few, large objects, few requests and little local disk; the bucket is minutes behind.
        "cost-optimized": Policy(
            roll=Roll(bytes=512 << 20, age=timedelta(hours=6)),
            compress=CompressRule(codec="zstd", level=9, after=timedelta(minutes=1)),
            offload=OffloadRule(after=timedelta(0), tail_interval=timedelta(minutes=5)),
            local_retention=LocalRetention(age=timedelta(minutes=30), bytes=5 << 30),
        ),
    }
)
