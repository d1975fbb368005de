"""Reads through a writer's server: planned there once, then read by each executor from the nearest place.

Cold splits come straight from the bucket, warm ones from the file where the executor has the store's directory, and all else
over Arrow Flight. A ticket names offsets, so a task that runs again gets the same rows, whatever moved meanwhile.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from ..cold.options import ColdOptions
from ..errors import OffsetOutOfRange, ServerUnavailable, TopicNotFound
from ..flight.connection import Connection
from ..flight.messages import Ticket
from ..flight.options import ConnectOptions, connect_options
from ..flight.place import directory_id
from ..flight.remote_scan import RemoteScan, RemoteSplit
from ..reader.access import Places, TierAccess
from ..reader.read import read_split
from ..reader.rows import Query
from ..reader.scan import Scan
from ..reader.snapshot import snapshot_partition
from ..reader.splits import Split, Tier
from ..settings import Settings
from ..warm.catalog import TOPICS_DIRECTORY, Catalog, TopicMeta
from ..warm.filesystem import OsFileSystem
from .options import SourceOptions

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemotePlaces:
    """Where a served store can be read. Picklable, and without a secret: each process finds the token of its own.

    Attributes
    ----------
    location
        URL of the server.
    config
        Path of a ``tiered.toml``, for the token's file and the certificates to trust.
    root, directory_id
        The store's directory; see `tiered.flight.messages.PlanInfo`.
    """

    location: str
    config: str | None
    root: str | None
    directory_id: str | None
    cold_url: str | None
    endpoint_url: str | None
    region: str | None

    @classmethod
    def of(cls, scan: RemoteScan, options: SourceOptions) -> RemotePlaces:
        """Return the places of a planned scan; what the options say of the bucket wins."""
        plan = scan.plan
        return cls(
            scan.location,
            options.config,
            plan.root,
            plan.directory_id,
            plan.cold_url,
            options.endpoint_url or plan.endpoint_url,
            options.region or plan.region,
        )

    @property
    def shared_bucket(self) -> bool:
        """Whether other hosts than the server's reach the bucket by its URL."""
        return self.cold_url is not None and not self.cold_url.startswith(("file:", "memory:"))

    def here(self) -> Places:
        """Return the places as this process has them: with the directory, where it is the same one and can be read."""
        root = self.root
        same = root is not None and self.directory_id is not None and directory_id(root) == self.directory_id
        # Executors may run as another user than the writer.
        same = same and os.access(f"{root}/{TOPICS_DIRECTORY}", os.R_OK | os.X_OK)
        options = ColdOptions(endpoint_url=self.endpoint_url, region=self.region)
        return Places(Path(root) if same and root is not None else None, self.cold_url, options)


def query_of(scan: Scan) -> Query:
    """Return what a scan, here or at a server, filters and narrows by."""
    if not isinstance(scan, RemoteScan):
        return scan._query
    splits = scan.splits()
    first = splits[0] if splits else None
    return first.source.base.query if isinstance(first, RemoteSplit) else Query()


def read_remote(
    remote: RemotePlaces, meta: TopicMeta, split: RemoteSplit, query: Query
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split of a server's plan.

    Raises
    ------
    OffsetOutOfRange, CorruptionError, ColdStorageError, ServerUnavailable
    """
    access = _access(remote)
    same_directory = access.places.root is not None
    reachable = split.tier is not Tier.COLD or remote.shared_bucket or same_directory
    direct = split.direct(same_directory=same_directory) if reachable else None
    if direct is None or (remote.cold_url or "").startswith("memory:"):
        left, begun = Ticket.decode(split.ticket), False
        try:
            for batch in _connection(remote.location, remote.config).rows(split.ticket):
                left, begun = left.behind(batch), True
                yield batch
            return
        except ServerUnavailable as gone:
            # Rows that do not tell how far they go would come again.
            if not same_directory or (begun and left.start_offset == split.start_offset):
                raise
            _log.warning("reading what the server had from %s: %s", access.places.root, gone)
        yield from _durable(access, meta, split.clip(left.start_offset, split.end_offset), query)
    else:
        yield from read_split(access, meta, direct, query)


def _durable(access: TierAccess, meta: TopicMeta, split: Split, query: Query) -> Iterator[pa.RecordBatch]:
    """Yield a split's rows by the directory alone: they were made durable before the plan named them (promise P2)."""
    root = access.places.root
    assert root is not None
    if Catalog(OsFileSystem(), root).read_topic(meta.name).topic_id != meta.topic_id:
        raise TopicNotFound(f"topic {meta.name!r} was deleted and created again")
    start, end = split.start_offset, split.end_offset
    found = snapshot_partition(access, meta, split.partition, view=None, start_offset=start, end_offset=end)
    if found.end_offset < end:
        raise OffsetOutOfRange(
            f"offset {end} of topic {meta.name!r} partition {split.partition} is not there; the log has "
            f"{found.start_offset} to {found.end_offset}",
            start=found.start_offset,
            end=found.end_offset,
        )
    for piece in found.splits:
        yield from read_split(access, meta, piece, query)


def forget_segments(remote: RemotePlaces) -> None:
    """Let go of local files: an evicted one that is held open keeps its disk space."""
    _access(remote).forget_segments()


@lru_cache(maxsize=16)
def _access(remote: RemotePlaces) -> TierAccess:
    return TierAccess(remote.here())


def _connection(location: str, config: str | None) -> Connection:
    # The token is looked up each time: its file may have another one by now.
    return _connected(location, connect_options(Settings.load(config), None))


@lru_cache(maxsize=16)
def _connected(location: str, options: ConnectOptions) -> Connection:
    return Connection(location, options)
