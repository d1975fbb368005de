"""`RemoteScan`: a scan that a server planned, and its splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from ...errors import ConfigError
from ...format.predicate import Predicate
from ...format.row_filter import RowFilter
from ...reader.rows import Query, coalesce, limit_rows
from ...reader.scan import Scan, ScanObject, ScanPlan
from ...reader.splits import Split
from ..wire.directory_id import directory_id
from ..wire.messages import PlanInfo, ScanCommand, SplitInfo, Ticket
from ..wire.options import ConnectOptions
from .connection import Connection


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """The place of a split at a server; picklable, without a secret.

    Attributes
    ----------
    location
        URL of the server.
    base
        The ticket of the whole scan; the ticket of a split adds its partition and offsets.
    info
        Where else the records of the split are.
    """

    location: str
    base: Ticket
    info: SplitInfo


@dataclass(frozen=True, slots=True)
class RemoteSplit(Split):
    """A split of a server's plan. It can be clipped, pickled, and read by `read_remote_split`."""

    source: RemoteSource  # type: ignore[assignment]

    @property
    def ticket(self) -> bytes:
        """The ticket with which the server gives the rows."""
        ticket = replace(
            self.source.base,
            partition=self.partition,
            start_offset=self.start_offset,
            end_offset=self.end_offset,
        )
        return ticket.encode()

    def direct(self, directory: Path | None) -> Split | None:
        """Return the split as one of the bucket or of the local file; None if only the server has the records.

        Parameters
        ----------
        directory
            The store's directory if this process has it too, else None; see `RemoteScan.same_directory`.
        """
        found = self.source.info.direct(self.topic, directory)
        return None if found is None else found.clip(self.start_offset, self.end_offset)


@dataclass(frozen=True, slots=True)
class Restriction:
    """A condition that the client evaluates on rows of the server, and the columns and the row limit after it."""

    only: Predicate
    columns: tuple[str, ...] | None
    limit: int | None


class RemoteScan(Scan):
    """A `Scan` whose rows come from a server. All of them were durable when it was planned.

    Attributes
    ----------
    location : str
        URL of the server.
    instance : Instance or None
        The run of the server if ``serving.json`` named it, without its secret.
    plan : PlanInfo
        The topic, the bucket and the directory of the store.
    """

    def __init__(
        self, connection: Connection, command: ScanCommand, check: Callable[[], None],
        restriction: Restriction | None = None,
    ) -> None:  # fmt: skip
        info = connection.plan(command.encode())
        self.plan = PlanInfo.decode(bytes(info.app_metadata))
        self.location = connection.location
        server = connection.options.instance
        self.instance = None if server is None else server.without_secret()
        self._connection = connection
        self.meta = self.plan.meta
        self._restriction = restriction
        self._limit = command.limit if restriction is None else restriction.limit
        self._check = check
        self.schema = info.schema
        if restriction is not None and restriction.columns is not None:
            self.schema = pa.schema([info.schema.field(name) for name in restriction.columns])
        self._splits = [_split(connection.location, self.meta.name, item) for item in info.endpoints]
        self.query = self._splits[0].source.base.query if self._splits else Query()
        if self._splits and self.query.filter is None and command.filter is not None:
            raise ConfigError(f"the server {connection.location} is of a release without filters: upgrade it")

    @property
    def locations(self) -> None:
        return None

    def splits(self) -> list[Split]:
        """Return the splits, in the order of their rows; each is a `RemoteSplit`."""
        return list(self._splits)

    @property
    def same_directory(self) -> bool:
        """Whether this process has the store's directory too, on the server's host and file system."""
        plan = self.plan
        return (
            plan.root is not None
            and plan.directory_id is not None
            and directory_id(plan.root) == plan.directory_id
        )

    def objects(self) -> list[ScanObject]:
        """Return the objects of the bucket that the scan reads, as `Scan.objects` does."""
        objects = []
        for split in self._splits:
            cold = split.source.info.cold
            if cold is not None:
                key, entry = cold
                start, end = split.start_offset, split.end_offset
                url = f"{(self.plan.cold_url or '').rstrip('/')}/{key}"
                whole = (start, end) == (entry.base_offset, entry.end_offset)
                objects.append(
                    ScanObject(url, split.partition, start, end, whole, entry.record_count, entry.bytes)
                )
        return objects

    @property
    def offsets(self) -> dict[int, tuple[int, int]]:
        """Start and end offset of each partition at the time of the plan."""
        return self.plan.ranges

    def end_at(self, ends: Mapping[int, int]) -> None:
        ranges = {
            partition: (min(start, ends[partition]), min(end, ends[partition]))
            for partition, (start, end) in self.plan.ranges.items()
        }
        self.plan = replace(self.plan, ranges=ranges)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one of `splits`, or of a part of one."""
        self._check()
        if not isinstance(split, RemoteSplit):
            raise ConfigError("this split is none of a server; read it with what planned it")
        rows = self._connection.rows(split.ticket)
        return rows if self._restriction is None else self._restrict(rows, self._restriction, split)

    def _restrict(
        self, rows: Iterator[pa.RecordBatch], restriction: Restriction, split: Split
    ) -> Iterator[pa.RecordBatch]:
        row_filter = RowFilter((restriction.only,), {"partition": split.partition})
        for batch in rows:
            mask = row_filter.mask(
                dict(zip(batch.schema.names, batch.columns, strict=True)), self.meta.schema
            )
            if mask is not False:
                kept = batch if mask is True else batch.filter(mask)
                yield kept.select(self.schema.names)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of some thousand, holding no more than a few in memory.

        Raises
        ------
        OffsetOutOfRange, CorruptionError, ColdStorageError, ServerUnavailable, StoreClosed
        """
        self._check()
        rows = (batch for split in self._splits for batch in self.read(split))
        return coalesce(limit_rows(rows, self._limit))

    def explain(self) -> ScanPlan:
        """Return the bytes, records and splits of each tier of the server."""
        return self._plan({})


def _split(location: str, topic: str, endpoint: object) -> RemoteSplit:
    ticket = Ticket.decode(bytes(endpoint.ticket.ticket))  # type: ignore[attr-defined]
    info = SplitInfo.decode(bytes(endpoint.app_metadata))  # type: ignore[attr-defined]
    source = RemoteSource(location, ticket, info)
    return RemoteSplit(
        topic, info.partition, info.start_offset, info.end_offset, info.tier, info.stored_bytes, source
    )


def read_remote_split(
    location: str, ticket: bytes, token: str | None = None, *, tls_roots: bytes | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one split of a remote scan, in a process that has not opened the store.

    Parameters
    ----------
    location
        ``grpc://host:port`` or ``grpc+tls://host:port``.
    ticket
        `RemoteSplit.ticket`.
    token, tls_roots
        As `ConnectOptions` has them.

    Raises
    ------
    ServerUnavailable, OffsetOutOfRange, TopicNotFound, CorruptionError, ColdStorageError, ConfigError
    """
    connection = Connection(location, ConnectOptions(token, tls_roots))
    try:
        yield from connection.rows(ticket)
    finally:
        connection.close()
