"""Reads through a writer's server: planned there once, then read by each executor from the nearest place.

Cold splits come straight from the bucket, warm ones from the file where the executor has the store's directory, and all else
over Arrow Flight. A ticket names offsets, so a task that runs again gets the same rows, whatever moved meanwhile.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from ...cold.object_store.options import ColdOptions
from ...errors import ConfigError, OffsetOutOfRange, ServerUnavailable, TopicNotFound
from ...flight.client.connection import Connection
from ...flight.client.remote_scan import RemoteScan, RemoteSplit
from ...flight.wire.directory_id import directory_id
from ...flight.wire.instance import Instance
from ...flight.wire.messages import PlanInfo, Ticket
from ...flight.wire.options import ConnectOptions, connect_options
from ...flight.wire.serving_file import read_notice
from ...format.topic_meta import TopicMeta
from ...reader.locations import TierLocations
from ...reader.read import read_split
from ...reader.rows import Query
from ...reader.scan import Scan
from ...reader.snapshot import snapshot_partition
from ...reader.splits import Split, Tier
from ...reader.tiers import Tiers
from ...settings.settings import Settings
from ...warm.bucket_binding import BucketBinding, read_binding
from ...warm.catalog import TOPICS_DIRECTORY, Catalog
from ...warm.filesystem import OsFileSystem
from ..options import SourceOptions

_log = logging.getLogger("tiered.spark.remote")

# Where boto3 and our connector look by themselves.
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
# URLs that lead to a cloud's own hosts, or to none.
_WITHOUT_HOST = ("s3:", "s3a:", "gs:", "gcs:", "file:", "memory:")


@dataclass(frozen=True, slots=True)
class RemoteLocations:
    """Where a served store can be read. Picklable, and without a secret: each process finds the token of its own.

    Attributes
    ----------
    location
        URL of the server.
    config
        Path of a ``tiered.toml``, for the token's file and the certificates to trust.
    root, directory_id
        The store's directory; see `PlanInfo`.
    instance
        Of the server, where the directory named it; without its secret.
    """

    location: str
    config: str | None
    root: str | None
    directory_id: str | None
    cold_url: str | None
    endpoint_url: str | None
    region: str | None
    instance: Instance | None = None

    @classmethod
    def of(cls, scan: Scan, options: SourceOptions) -> RemoteLocations:
        """Return the places of a planned scan; what is configured here of the bucket wins.

        Raises
        ------
        ConfigError
            The plan sends requests to a host that nothing here names.
        """
        assert isinstance(scan, RemoteScan)
        plan = scan.plan
        bucket = bucket_of(plan, options, os.environ)
        return cls(
            scan.location,
            options.config,
            plan.root,
            plan.directory_id,
            bucket.url,
            bucket.endpoint_url,
            bucket.region,
            scan.instance,
        )

    @property
    def shared_bucket(self) -> bool:
        """Whether other hosts than the server's reach the bucket by its URL."""
        return self.cold_url is not None and not self.cold_url.startswith(("file:", "memory:"))

    def here(self) -> TierLocations:
        """Return the places as this process has them: with the directory, where it is the same one and can be read."""
        root = self.root
        same = root is not None and self.directory_id is not None and directory_id(root) == self.directory_id
        # Executors may run as another user than the writer.
        same = same and os.access(f"{root}/{TOPICS_DIRECTORY}", os.R_OK | os.X_OK)
        options = ColdOptions(endpoint_url=self.endpoint_url, region=self.region)
        return TierLocations(Path(root) if same and root is not None else None, self.cold_url, options)


def bucket_of(plan: PlanInfo, options: SourceOptions, environment: Mapping[str, str]) -> BucketBinding:
    """Return the bucket of a plan, at a host that was configured here and not by the server alone.

    Requests to it are signed with the credentials of this process, and may carry a token: who made up the plan would say who
    gets them. Configured is what the read's options and settings say, and what the directory remembers that it names.

    Raises
    ------
    ConfigError
        Names the setting to write, and what the server said.
    """
    settings = options.settings()
    path = options.path if options.path is not None else settings.store.path
    known = BucketBinding() if "://" in path else read_binding(Path(path).absolute())
    endpoint = settings.cold.endpoint_url or known.endpoint_url
    said = plan.endpoint_url
    if said is not None and endpoint is None and not any(environment.get(name) for name in _ENDPOINTS):
        raise ConfigError(
            f"the server says that its bucket is at {said!r}, and nothing here does: if that is right, give the option "
            f"endpointUrl, or write endpoint_url = {json.dumps(said)} under [cold] of the settings"
        )
    url = plan.cold_url
    if url is not None and not url.startswith(_WITHOUT_HOST):
        configured = {found.rstrip("/") for found in (settings.cold.url, known.url) if found}
        if url.rstrip("/") not in configured:
            raise ConfigError(
                f"the server says that its bucket is {url!r}, which names a host, and nothing here does: if that is right, "
                f"write url = {json.dumps(url)} under [cold] of the settings"
            )
    return BucketBinding(url, endpoint, settings.cold.region or known.region or plan.region)


def locations_of(scan: Scan, options: SourceOptions) -> TierLocations | RemoteLocations:
    """Return where executors read a scan's rows; of a served store see `RemoteLocations.of`."""
    return scan.locations if scan.locations is not None else RemoteLocations.of(scan, options)


def read_remote(
    remote: RemoteLocations, meta: TopicMeta, split: RemoteSplit, query: Query
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split of a server's plan.

    Raises
    ------
    OffsetOutOfRange, CorruptionError, ColdStorageError, ServerUnavailable
    """
    access = _access(remote)
    same_directory = access.locations.root is not None
    reachable = split.tier is not Tier.COLD or remote.shared_bucket or same_directory
    direct = split.direct(access.locations.root) if reachable else None
    if direct is None or (remote.cold_url or "").startswith("memory:"):
        left, begun = Ticket.decode(split.ticket), False
        try:
            for batch in _connection(remote).rows(split.ticket):
                left, begun = left.behind(batch), True
                yield batch
            return
        except ServerUnavailable as gone:
            # Rows that do not tell how far they go would come again.
            if not same_directory or (begun and left.start_offset == split.start_offset):
                raise
            _log.warning("reading what the server had from %s: %s", access.locations.root, gone)
        yield from _durable(access, meta, split.clip(left.start_offset, split.end_offset), query)
    else:
        yield from read_split(access, meta, direct, query)


def _durable(access: Tiers, meta: TopicMeta, split: Split, query: Query) -> Iterator[pa.RecordBatch]:
    """Yield a split's rows by the directory alone: they were made durable before the plan named them (promise P2)."""
    root = access.locations.root
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


def release_segments(remote: RemoteLocations) -> None:
    """Let go of local files: an evicted one that is held open keeps its disk space."""
    _access(remote).release_segments()


@lru_cache(maxsize=16)
def _access(remote: RemoteLocations) -> Tiers:
    return Tiers(remote.here())


def _connection(remote: RemoteLocations) -> Connection:
    # The token is looked up each time: its file may have another one by now.
    options = connect_options(Settings.load(remote.config), None)
    if remote.instance is not None:
        server = _still_there(remote, remote.instance)
        provable = server.asks_token or server.secret is not None
        token = options.token if server.asks_token else None
        options = replace(options, token=token, instance=server if provable else None)
    return _connected(remote.location, options)


def _still_there(remote: RemoteLocations, server: Instance) -> Instance:
    """Return a server with what stands for a token where it asks for none; on another host only its id is known.

    Raises
    ------
    ServerUnavailable
        It has ended: there is no need to wait for it.
    """
    root = remote.here().root
    if root is None:
        return server
    notice = read_notice(root)
    if notice is None or notice.instance != server.id:
        raise ServerUnavailable(f"{remote.location} serves {root} no more")
    return notice.server


@lru_cache(maxsize=16)
def _connected(location: str, options: ConnectOptions) -> Connection:
    return Connection(location, options)
