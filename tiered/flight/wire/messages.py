"""The messages beside Arrow data: JSON in commands, tickets and metadata, as frozen values.

=======================  ===========================================================================================
Flight call              message
=======================  ===========================================================================================
``get_flight_info``      descriptor: command `ScanCommand`; answer: metadata `PlanInfo`; each endpoint: a `Ticket`
                         and metadata `SplitInfo`, in the order of the rows
``do_get``               `Ticket`; answer: the rows of one split
``do_put``               descriptor: command `PutCommand`; each batch: metadata `BatchInfo`; answer to each: `Ack`
                         (`put_messages`); a few records can take the place of a batch (`packed_rows`)
``do_action``            the type is the action's name, the body a JSON object, the answer one JSON object
any that fails           ``extra_info`` of the Flight error: a `TieredError` by `errors`
=======================  ===========================================================================================

A ticket is self-contained and never expires: it names offsets of one partition, which are never reused (promise P1). A task
that runs again gets the same rows from any tier, or `OffsetOutOfRange`. A ticket is not signed: it grants nothing that a
client which may connect cannot ask for, and every field of it is checked.

Decoding raises `ConfigError` for bytes that are not such a message.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa

from ...cold.manifest.keys import PartitionKeys
from ...errors import CorruptionError
from ...format.manifest import ObjectEntry
from ...format.manifest_checks import check_object
from ...format.manifest_codec import entry_from_json, entry_to_json
from ...format.predicate import Predicate
from ...format.schema import is_topic_name
from ...format.topic_meta import TopicMeta
from ...reader.rows import Query
from ...reader.splits import ColdSource, Split, Tier, WarmSource
from ...warm.catalog import TOPICS_DIRECTORY
from ...warm.partition_directory import SegmentName
from .predicates import decode_predicate, encode_predicate
from .values import MESSAGE_BYTES_MAX, PROTOCOL, count, dump, load, maybe, positive, text, texts, whole

Offsets = int | Mapping[int, int] | None

_REGION = re.compile(r"[A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class ScanCommand:
    """The arguments of `Topic.scan`, with timestamps in microseconds, and the size of splits.

    Attributes
    ----------
    split_bytes
        Splits are cut to about this many stored bytes, between blocks or row groups; None: one split a segment or object.
    """

    topic: str
    partitions: tuple[int, ...] | None = None
    start_offset: Offsets = None
    end_offset: Offsets = None
    start_timestamp_us: int | None = None
    end_timestamp_us: int | None = None
    key: object = None
    columns: tuple[str, ...] | None = None
    limit: int | None = None
    split_bytes: int | None = None
    topic_id: UUID | None = None
    filter: Predicate | None = None

    def encode(self) -> bytes:
        """Return the JSON document."""
        return dump(
            {
                "protocol": PROTOCOL,
                "scan": self.topic,
                "topic_id": None if self.topic_id is None else str(self.topic_id),
                "partitions": self.partitions,
                "start_offset": _offsets_out(self.start_offset),
                "end_offset": _offsets_out(self.end_offset),
                "start_timestamp_us": self.start_timestamp_us,
                "end_timestamp_us": self.end_timestamp_us,
                "key": _key_out(self.key),
                "columns": self.columns,
                "limit": self.limit,
                "split_bytes": self.split_bytes,
                **_filter_out(self.filter),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> ScanCommand:
        """Invert `encode`; a missing value has its default."""

        def build(values: dict[str, Any]) -> ScanCommand:
            partitions, topic_id = values.get("partitions"), maybe(text, values.get("topic_id"))
            return cls(
                text(values["scan"]),
                None if partitions is None else tuple(whole(item) for item in partitions),
                _offsets_in(values.get("start_offset")),
                _offsets_in(values.get("end_offset")),
                maybe(whole, values.get("start_timestamp_us")),
                maybe(whole, values.get("end_timestamp_us")),
                _key_in(values.get("key")),
                maybe(texts, values.get("columns")),
                maybe(count, values.get("limit")),
                maybe(positive, values.get("split_bytes")),
                None if topic_id is None else UUID(topic_id),
                maybe(decode_predicate, values.get("filter")),
            )

        return load(data, "command of a scan", build, MESSAGE_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class Ticket:
    """One split: records ``[start_offset, end_offset)`` of a partition, and the query on them.

    Attributes
    ----------
    topic_id
        A topic that was deleted and created again has another id.
    columns
        The names of all columns, so that a column that is added later changes nothing.
    limit
        The number of rows after which the split ends.
    dense
        Whether no record of the topic was ever erased or compacted.
    lineage
        The epoch of the lineage that the log is to have; None for any. Servers of earlier releases do not compare it.
    """

    topic: str
    topic_id: UUID
    partition: int
    start_offset: int
    end_offset: int
    columns: tuple[str, ...]
    start_timestamp_us: int | None = None
    end_timestamp_us: int | None = None
    key: object = None
    key_column: str | None = None
    limit: int | None = None
    filter: Predicate | None = None
    dense: bool = True
    lineage: int | None = None

    @property
    def query(self) -> Query:
        """The query on the rows."""
        return Query(
            self.columns,
            self.start_timestamp_us,
            self.end_timestamp_us,
            self.key,
            self.key_column,
            self.filter,
        )

    def behind(self, batch: pa.RecordBatch) -> Ticket:
        """Return the ticket of the rows after `batch`, or this one if the batch does not show where they begin."""
        if "offset" in self.columns:
            reached = batch.column("offset")[-1].as_py() + 1
        elif self.dense and not self.query.filters:
            reached = self.start_offset + batch.num_rows  # offsets are dense (promise P1)
        else:
            return self
        limit = None if self.limit is None else self.limit - batch.num_rows
        return replace(self, start_offset=reached, limit=limit)

    def encode(self) -> bytes:
        """Return the JSON document."""
        return dump(
            {
                "protocol": PROTOCOL,
                "topic": self.topic,
                "topic_id": str(self.topic_id),
                "partition": self.partition,
                "start_offset": self.start_offset,
                "end_offset": self.end_offset,
                "columns": self.columns,
                "start_timestamp_us": self.start_timestamp_us,
                "end_timestamp_us": self.end_timestamp_us,
                "key": _key_out(self.key),
                "key_column": self.key_column,
                "limit": self.limit,
                **_filter_out(self.filter),
                **({} if self.dense else {"dense": False}),
                **({} if self.lineage is None else {"lineage": self.lineage}),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Ticket:
        """Invert `encode`."""

        def build(values: dict[str, Any]) -> Ticket:
            key, column = _key_in(values.get("key")), maybe(text, values.get("key_column"))
            if (key is None) != (column is None):
                raise ValueError("a key and its column go together")
            ticket = cls(
                text(values["topic"]),
                UUID(text(values["topic_id"])),
                count(values["partition"]),
                count(values["start_offset"]),
                count(values["end_offset"]),
                texts(values["columns"]),
                maybe(whole, values.get("start_timestamp_us")),
                maybe(whole, values.get("end_timestamp_us")),
                key,
                column,
                maybe(count, values.get("limit")),
                maybe(decode_predicate, values.get("filter")),
                values.get("dense") is not False,
                maybe(whole, values.get("lineage")),
            )
            if ticket.end_offset < ticket.start_offset:
                raise ValueError("it ends before it starts")
            return ticket

        return load(data, "ticket", build, MESSAGE_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class SplitInfo:
    """Where the records of a split are, for a planner that sends readers to the bucket or to the file itself.

    Attributes
    ----------
    stored_bytes
        An estimate: the share of the records in the object or file.
    cold
        Key and manifest entry of the object with the split, or None.
    warm
        Path and segment id of the local file with the split, or None; see `PlanInfo.directory_id`.
    """

    tier: Tier
    partition: int
    start_offset: int
    end_offset: int
    stored_bytes: int
    cold: tuple[str, ObjectEntry] | None = None
    warm: tuple[str, UUID] | None = None

    @classmethod
    def of(cls, split: Split) -> SplitInfo:
        """Describe a split of the server's own."""
        source = split.source
        return cls(
            split.tier,
            split.partition,
            split.start_offset,
            split.end_offset,
            split.bytes,
            (source.key, source.entry) if isinstance(source, ColdSource) else None,
            (source.path, source.segment_id) if isinstance(source, WarmSource) else None,
        )

    def direct(self, topic: str, directory: Path | None) -> Split | None:
        """Return the split as a picklable one of the bucket or the file; None if only the server has the records.

        Parameters
        ----------
        directory
            The store's directory if the reader has it too (`PlanInfo.directory_id`), else None. Only files below it are
            opened, whatever path the server names.
        """
        source: ColdSource | WarmSource
        if self.cold is not None:
            key, entry = self.cold
            source = ColdSource(key.removesuffix(entry.name), (entry,))
        elif self.warm is not None and directory is not None and self._lies_in(directory, topic):
            source = WarmSource(*self.warm)
        else:
            return None
        return Split(
            topic, self.partition, self.start_offset, self.end_offset, self.tier, self.stored_bytes, source
        )

    def _lies_in(self, directory: Path, topic: str) -> bool:
        path = Path(self.warm[0]) if self.warm is not None else Path()
        partition = directory / TOPICS_DIRECTORY / topic / str(self.partition)
        return SegmentName.parse(path.name) is not None and path.parent == partition

    def encode(self) -> bytes:
        """Return the JSON document."""
        values: dict[str, Any] = {
            "tier": self.tier.value,
            "partition": self.partition,
            "start_offset": self.start_offset,
            "end_offset": self.end_offset,
            "bytes": self.stored_bytes,
        }
        if self.cold is not None:
            values["cold"] = {"key": self.cold[0], "entry": entry_to_json(self.cold[1])}
        if self.warm is not None:
            values["warm"] = {"path": self.warm[0], "segment_id": str(self.warm[1])}
        return dump(values)

    @classmethod
    def decode(cls, data: bytes) -> SplitInfo:
        """Invert `encode`."""

        def build(values: dict[str, Any]) -> SplitInfo:
            cold, warm = values.get("cold"), values.get("warm")
            info = cls(
                Tier(values["tier"]),
                count(values["partition"]),
                count(values["start_offset"]),
                count(values["end_offset"]),
                count(values["bytes"]),
                None if cold is None else (text(cold["key"]), entry_from_json(cold["entry"])),
                None if warm is None else (text(warm["path"]), UUID(text(warm["segment_id"]))),
            )
            if info.cold is not None:
                _check_object(*info.cold, info.partition)
            return info

        return load(data, "description of a split", build)


@dataclass(frozen=True, slots=True)
class PlanInfo:
    """The facts of a plan that all splits share.

    Attributes
    ----------
    ranges
        Start and end offset of each partition at the time of the plan.
    cold_url, endpoint_url, region
        The bucket and its endpoint, without credentials, or None.
    directory_id
        The id of the store's directory at the server (`flight.wire.directory_id`). A reader that computes the same id for
        the path ``root`` can open the files of warm splits.
    """

    meta: TopicMeta
    ranges: dict[int, tuple[int, int]]
    columns: tuple[str, ...]
    cold_url: str | None = None
    endpoint_url: str | None = None
    region: str | None = None
    root: str | None = None
    directory_id: str | None = None

    def encode(self) -> bytes:
        """Return the JSON document."""
        return dump(
            {
                "protocol": PROTOCOL,
                "topic": self.meta.to_json(),
                "ranges": {str(partition): ends for partition, ends in self.ranges.items()},
                "columns": self.columns,
                "cold_url": self.cold_url,
                "endpoint_url": self.endpoint_url,
                "region": self.region,
                "root": self.root,
                "directory_id": self.directory_id,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> PlanInfo:
        """Invert `encode`."""

        def build(values: dict[str, Any]) -> PlanInfo:
            optional = ("cold_url", "endpoint_url", "region", "root", "directory_id")
            if _REGION.fullmatch(values.get("region") or "") is None:
                raise ValueError("the region is none")  # it becomes a part of the name of a host
            return cls(
                topic_meta(values["topic"]),
                {int(key): (count(start), count(end)) for key, (start, end) in values["ranges"].items()},
                texts(values["columns"]),
                *(maybe(text, values.get(name)) for name in optional),
            )

        return load(data, "plan", build)


def _check_object(key: str, entry: ObjectEntry, partition: int) -> None:
    """Raise `ValueError` for a key that is not of an object of that name, or an entry that no manifest would have."""
    topic, _, rest = key.partition("/")
    if not is_topic_name(topic):
        raise ValueError(f"{topic[:60]!r} is no topic's folder")
    if key != PartitionKeys.of(topic, UUID(rest.partition("/")[0]), partition).data(entry.name):
        raise ValueError(f"{key[:200]!r} is not the key of {entry.name}")
    problems = check_object(entry)
    if problems:
        raise ValueError(problems[0])


def _offsets_out(offsets: Offsets) -> Any:
    if isinstance(offsets, Mapping):
        return {str(partition): offset for partition, offset in offsets.items() if offset is not None}
    return offsets


def _offsets_in(value: Any) -> Offsets:
    if isinstance(value, dict):
        return {int(partition): whole(offset) for partition, offset in value.items()}
    return maybe(whole, value)


def _filter_out(predicate: Predicate | None) -> dict[str, Any]:
    # Absent without a filter, so that other messages are those of earlier releases.
    return {} if predicate is None else {"filter": encode_predicate(predicate)}


def _key_out(key: object) -> Any:
    return {"bytes": base64.b64encode(key).decode()} if isinstance(key, bytes) else key


def _key_in(value: Any) -> object:
    if isinstance(value, dict):
        return base64.b64decode(text(value["bytes"]), validate=True)
    if value is not None and type(value) not in (str, int):
        raise TypeError(f"{value!r} is no key")
    return value


def topic_meta(values: Any) -> TopicMeta:
    """Return a topic as a server describes it; `ValueError` for what is none."""
    try:
        return TopicMeta.from_json(values, where="the server's answer")
    except CorruptionError as error:
        raise ValueError(str(error)) from None
