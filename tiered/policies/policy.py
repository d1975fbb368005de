"""The policy of a topic: its settings for sealing, compression, movement, retention, merges and scrubs.

Every age counts from the last append of a segment, except ``retention`` with ``by = "timestamp"``. Limits in bytes apply
to each partition, like Kafka's ``retention.bytes``. ``None`` (written ``off``) means never, or no limit.
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
    format_duration,
    format_size,
)
from ..format.block import RAW_BYTES_MAX

ROW_GROUP_BYTES_MIN, ROW_GROUP_BYTES_MAX = 1 << 20, 64 << 20
_EPOCH = datetime.fromtimestamp(0, UTC)


class _Rule(BaseModel):
    """One inline table of a policy; ``"off"`` switches off the whole table."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    limits: ClassVar[tuple[str, ...]]

    @model_validator(mode="before")
    @classmethod
    def _all_off(cls, value: Any) -> Any:
        return dict.fromkeys(cls.limits) if value == "off" else value


def readable_class(name: str) -> str:
    """Return the name of a storage class; raise `ValueError` for a class that needs a restore before each read."""
    if name in ("GLACIER", "DEEP_ARCHIVE"):
        raise ValueError(
            f'{name} cannot be read without a restore first; write "GLACIER_IR" or "STANDARD_IA"'
        )
    return name


def _us(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _fits_a_block(size: int) -> int:
    if size > RAW_BYTES_MAX // 2:
        # A block may exceed its target by a quarter.
        raise ValueError(f"is at most {format_size(RAW_BYTES_MAX // 2)}, half the limit of the format")
    return size


def _fits_readers(size: int) -> int:
    if not ROW_GROUP_BYTES_MIN <= size <= ROW_GROUP_BYTES_MAX:
        limits = f"{format_size(ROW_GROUP_BYTES_MIN)} to {format_size(ROW_GROUP_BYTES_MAX)}"
        raise ValueError(f"is {limits}, so that every reader can hold a row group")
    return size


class Roll(_Rule):
    """Seal the active segment when it has ``bytes``, or its first record has ``age``."""

    limits = ("bytes", "age")
    bytes: PositiveSizeOrOff = 256 << 20
    age: PositiveDurationOrOff = timedelta(hours=1)


class CompressRule(_Rule):
    """Re-encode a sealed segment on the local disk, ``after`` its last append, into blocks of about ``block_bytes``.

    ``level=None`` is the codec's default. Files smaller than ``min_bytes`` are not re-encoded.
    """

    limits = ("after",)
    codec: Literal["none", "lz4", "zstd"] = "zstd"
    level: Annotated[int | None, Field(ge=-7, le=22)] = None
    after: DurationOrOff = timedelta(minutes=1)
    min_bytes: Size = 0
    block_bytes: Annotated[PositiveSize, AfterValidator(_fits_a_block)] = 1 << 20


class OffloadRule(_Rule):
    """Copy sealed segments to the cold tier ``after`` their last append, and the active tail every ``tail_interval``.

    If more than ``bytes`` of sealed segments wait, or the disk has less free room than ``local_retention.free_disk``,
    segments are offloaded sooner, the oldest first. ``after = "off"`` offloads nothing. The objects, and those of merges,
    have row groups of about ``row_group_bytes`` before compression. The objects of whole segments have Bloom filters on the
    key column: with ``key_filter = "auto"`` where they pay, with ``"on"`` always, with ``"off"`` never.
    """

    limits = ("after", "tail_interval")
    after: DurationOrOff = timedelta(minutes=10)
    tail_interval: DurationOrOff = timedelta(seconds=10)
    bytes: SizeOrOff = None
    row_group_bytes: Annotated[PositiveSize, AfterValidator(_fits_readers)] = 16 << 20
    key_filter: Literal["auto", "on", "off"] = "auto"


class LocalRetention(_Rule):
    """Evict offloaded segments that have ``age``, or exceed ``bytes`` together.

    While the disk has less free room than ``free_disk``, a size or a share such as ``"5%"``, evict the oldest segments of
    all topics. If those would not make the room, the largest active segments are sealed, from 1 MiB on, so that they leave
    next. Segments that are not offloaded always stay.
    """

    # Without a floor a full disk stops appends, so "off" for the whole table leaves `free_disk` as it is.
    limits = ("age", "bytes")
    age: DurationOrOff = None
    bytes: SizeOrOff = None
    free_disk: FloorOrOff = Floor(percent=Fraction(5))


class Pin(_Rule):
    """Keep data on the local disk, regardless of ``local_retention``.

    Pinned are segments appended within ``age``, or with ``topic = "on"`` (short ``pin = "on"``) all local segments.
    ``since`` and ``until`` (exclusive) are record timestamps: objects with records of that time are copied to the local
    disk and stay there.
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
        """Whether a record with a timestamp in these bounds may be pinned by ``since`` and ``until``."""
        if self.since is None and self.until is None:
            return False
        return (self.since is None or max_timestamp_us >= _us(self.since)) and (
            self.until is None or min_timestamp_us < _us(self.until)
        )


class PromoteRule(_Rule):
    """Make a local copy of an object once its bytes were fetched from the bucket in ``reads`` different minutes.

    Every process that reads through the local store counts; a count ends ``within`` after the last fetch. A copy is deleted
    when it was not read for ``keep``. If the copies of a partition exceed ``bytes``, or the disk is short, the least
    recently read copies are deleted first.
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
    """Move objects into another storage class of the bucket, ``after`` their last append.

    An object is copied under a new name, and the compared copy is published in place of it.
    """

    limits = ("after",)
    name: str = "STANDARD_IA"
    after: PositiveDurationOrOff = None

    @field_validator("name")
    @classmethod
    def _readable(cls, name: str) -> str:
        return readable_class(name)


class Retention(_Rule):
    """Delete records permanently, in every tier, when they have ``age``, or the log exceeds ``bytes``; by default never.

    ``by``: ages count from the last append, or from the records' timestamps. Records that a consumer of ``unless_behind``
    has not read stay until they have the age ``unless_behind_max``. A name without a position in the partition counts as
    behind.
    """

    limits = ("age", "bytes")
    age: PositiveDurationOrOff = None
    bytes: PositiveSizeOrOff = None
    by: Literal["append", "timestamp"] = "append"
    unless_behind: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    unless_behind_max: PositiveDurationOrOff = None

    @model_validator(mode="after")
    def _check_consumers(self) -> Self:
        limit = self.unless_behind_max
        if not self.unless_behind:
            if limit is not None:
                raise ValueError(
                    'unless_behind_max has no effect without consumers; write unless_behind = ["NAME"]'
                )
            return self
        if self.age is None and self.bytes is None:
            raise ValueError("unless_behind has no effect without a limit; write age or bytes too")
        if limit is None:
            raise ValueError('unless_behind needs a bound; write unless_behind_max, such as "30d"')
        if self.age is not None and limit <= self.age:
            raise ValueError(
                f"unless_behind_max ({format_duration(limit)}) is not longer than age ({format_duration(self.age)}), so "
                "that nothing waits; write more"
            )
        return self


class MergeRule(_Rule):
    """Merge small adjacent objects into objects of at most ``target_bytes``, ``after`` their last append.

    An object of at least half the target is not merged.
    """

    limits = ("target_bytes", "after")
    target_bytes: PositiveSizeOrOff = 256 << 20
    after: DurationOrOff = timedelta(hours=6)


TABLE_CUT = 0.25


class CutRule(_Rule):
    """Rewrite the object in which the log begins without its deleted records, once they are a share ``deleted`` of it.

    The default is a quarter for topics with a ``table``, and off for others.

    Only ``delete_before`` deletes a part of an object. ``deleted = 0`` rewrites after each one. The object waits until the
    local disk has evicted the segment in which the log begins.
    """

    limits = ("deleted",)
    deleted: Annotated[
        Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None,
        BeforeValidator(lambda value: None if value == "off" else value),
        PlainSerializer(lambda value: "off" if value is None else value, when_used="json"),
    ] = None


class CompactKeysRule(_Rule):
    """Keep only the latest record of each key of a partition, among records ``after`` their last append; by default all stay.

    A partition is compacted when records that no compaction has seen are a share ``dirty`` of its objects. A record whose
    value is null, or in typed topics the column ``deleted`` true, says that its key is deleted: it goes, too, once it has
    been the latest for ``keep_tombstones``. Records without a key stay. Compaction removes records from objects in the
    bucket, and deletes the local files of those first.
    """

    limits = ("after",)
    after: DurationOrOff = None
    keep_tombstones: PositiveDuration = timedelta(days=1)
    dirty: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.5
    deleted: Annotated[
        Annotated[str, Field(min_length=1)] | None,
        BeforeValidator(lambda value: None if value == "off" else value),
        PlainSerializer(lambda value: "off" if value is None else value, when_used="json"),
    ] = None


class ScrubRule(_Rule):
    """Check each object once in ``every``, at most ``bytes_per_pass`` of a partition's objects in a pass."""

    limits = ("every",)
    every: PositiveDurationOrOff = timedelta(days=30)
    bytes_per_pass: PositiveSize = 1 << 30


class TableRule(_Rule):
    """Keep an Iceberg table of the topic current in its bucket: a snapshot at most ``every`` after a change; by default none.

    With ``tails = "off"`` the table has the objects of sealed segments only. ``glue`` names a database of AWS Glue in which each
    version is registered.
    """

    limits = ("every",)
    every: PositiveDurationOrOff = None
    tails: bool = True
    glue: Annotated[
        Annotated[str, Field(pattern=r"^[a-z0-9_]{1,255}$")] | None,
        BeforeValidator(lambda value: None if value == "off" else value),
        PlainSerializer(lambda value: "off" if value is None else value, when_used="json"),
    ] = None


class Policy(BaseModel):
    """All rules of one topic, resolved. Nothing expires without a ``retention``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    roll: Roll = Roll()
    compress: CompressRule = CompressRule(level=3)
    offload: OffloadRule = OffloadRule()
    local_retention: LocalRetention = LocalRetention(age=timedelta(hours=6), bytes=50 << 30)
    retention: Retention = Retention()
    merge: MergeRule = MergeRule()
    cut: CutRule = CutRule()
    compact_keys: CompactKeysRule = CompactKeysRule()
    scrub: ScrubRule = ScrubRule()
    storage_class: StorageClass = StorageClass()
    promote: PromoteRule = PromoteRule()
    pin: Pin = Pin()
    table: TableRule = TableRule()

    @property
    def cut_share(self) -> float | None:
        """The share of deleted records at which an object is cut; None: never.

        Unless the policy says otherwise, it is `TABLE_CUT` for a topic with a table, whose readers see the deleted records.
        """
        is_set = self.cut.deleted is not None or "deleted" in self.cut.model_fields_set
        return self.cut.deleted if is_set or self.table.every is None else TABLE_CUT


PRESETS: Mapping[str, Policy] = MappingProxyType(
    {
        # Much data stays local and is cheap to decode; the bucket lags by seconds.
        "high-performance": Policy(
            roll=Roll(bytes=512 << 20, age=timedelta(hours=1)),
            compress=CompressRule(codec="lz4", after=timedelta(minutes=10)),
            offload=OffloadRule(after=timedelta(minutes=10), tail_interval=timedelta(seconds=5)),
            local_retention=LocalRetention(age=timedelta(days=7), bytes=500 << 30),
            promote=PromoteRule(reads=3, bytes=50 << 30),
        ),
        # Few large objects, few requests and little local disk; the bucket lags by minutes.
        "cost-optimized": Policy(
            roll=Roll(bytes=512 << 20, age=timedelta(hours=6)),
            compress=CompressRule(codec="zstd", level=9, after=timedelta(minutes=1)),
            offload=OffloadRule(after=timedelta(0), tail_interval=timedelta(minutes=5)),
            local_retention=LocalRetention(age=timedelta(minutes=30), bytes=5 << 30),
        ),
    }
)
