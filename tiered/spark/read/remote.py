"""Reads through a writer's server: the server plans, and each executor reads from the nearest tier.

An executor reads cold splits from the bucket, warm splits from the file if it has the store's directory, and the rest
over Arrow Flight. A ticket names offsets, so a task that runs again reads the same rows from whichever tier has them.
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

# Environment variables that boto3 and our connector read.
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
# Schemes of URLs that name no host: a cloud's own hosts serve them, or this one.
_WITHOUT_HOST = ("s3:", "s3a:", "gs:", "gcs:", "file:", "memory:")


@dataclass(frozen=True, slots=True)
class RemoteLocations:
    """Where to read a served store. Picklable, and without a secret: each process reads the token itself.

    Attributes
    ----------
    location
        URL of the server.
    config
        Path of a ``tiered.toml``, for the token's file and the certificates to trust.
    root, directory_id
        The store's directory; see `PlanInfo`.
    instance
        The server's instance without its secret, if the store's directory named it.
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
        """Return the locations of a planned scan. The bucket's settings on this host win over those in the plan.

        Raises
        ------
        ConfigError
            The plan names a host for requests that no setting here names.
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
        """Whether hosts other than the server's reach the bucket by its URL."""
        return self.cold_url is not None and not self.cold_url.startswith(("file:", "memory:"))

    def on_this_host(self) -> TierLocations:
        """Return the locations for this process: with the directory if this host has it and may read it."""
        root = self.root
        same = root is not None and self.directory_id is not None and directory_id(root) == self.directory_id
        # Executors may run as another user than the writer.
        readable = same and os.access(f"{root}/{TOPICS_DIRECTORY}", os.R_OK | os.X_OK)
        options = ColdOptions(endpoint_url=self.endpoint_url, region=self.region)
        return TierLocations(Path(root) if readable and root is not None else None, self.cold_url, options)


def bucket_of(plan: PlanInfo, options: SourceOptions, environment: Mapping[str, str]) -> BucketBinding:
    """Return the bucket of a plan. Its host must be configured on this side; the server's word is not enough.

    This process signs requests to that host with its credentials, and may send a token. Otherwise a forged plan could
    send them anywhere. The configuration is the read's options, its settings and the binding in the store's directory.

    Raises
    ------
    ConfigError
        The message says what the server named, and which setting to write.
    """
    settings = options.settings()
    path = options.path if options.path is not None else settings.store.path
    binding = BucketBinding() if "://" in path else read_binding(Path(path).absolute())
    endpoint = settings.cold.endpoint_url or binding.endpoint_url
    planned = plan.endpoint_url
    if planned is not None and endpoint is None and not any(environment.get(name) for name in _ENDPOINTS):
        raise ConfigError(
            f"the server says that its bucket is at {planned!r}, and no setting here names it: if it is right, set the "
            f"option endpointUrl, or write endpoint_url = {json.dumps(planned)} under [cold] of the settings"
        )
    url = plan.cold_url
    if url is not None and not url.startswith(_WITHOUT_HOST):
        configured = {name.rstrip("/") for name in (settings.cold.url, binding.url) if name}
        if url.rstrip("/") not in configured:
            raise ConfigError(
                f"the server says that its bucket is {url!r}, and no setting here names that host: if it is right, "
                f"write url = {json.dumps(url)} under [cold] of the settings"
            )
    return BucketBinding(url, endpoint, settings.cold.region or binding.region or plan.region)


def locations_of(scan: Scan, options: SourceOptions) -> TierLocations | RemoteLocations:
    """Return where executors read the rows of a scan; for a served store see `RemoteLocations.of`."""
    return scan.locations if scan.locations is not None else RemoteLocations.of(scan, options)


def read_remote(
    remote: RemoteLocations, meta: TopicMeta, split: RemoteSplit, query: Query
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split of a server's plan.

    Raises
    ------
    OffsetOutOfRange, CorruptionError, ColdStorageError, ServerUnavailable
    """
    tiers = _tiers(remote)
    same_directory = tiers.locations.root is not None
    reachable = split.tier is not Tier.COLD or remote.shared_bucket or same_directory
    direct = split.direct(tiers.locations.root) if reachable else None
    if direct is None or (remote.cold_url or "").startswith("memory:"):
        remaining, has_rows = Ticket.decode(split.ticket), False
        try:
            for batch in _connection(remote).rows(split.ticket):
                remaining, has_rows = remaining.behind(batch), True
                yield batch
            return
        except ServerUnavailable as error:
            # Without the column of offsets, nobody knows which rows came already: they would come twice.
            if not same_directory or (has_rows and remaining.start_offset == split.start_offset):
                raise
            _log.warning("the server is gone; reading its rows from %s: %s", tiers.locations.root, error)
        yield from _read_directory(tiers, meta, split.clip(remaining.start_offset, split.end_offset), query)
    else:
        yield from read_split(tiers, meta, direct, query)


def _read_directory(tiers: Tiers, meta: TopicMeta, split: Split, query: Query) -> Iterator[pa.RecordBatch]:
    """Yield a split's rows from the store's directory. They were durable before the plan named them (promise P2)."""
    root = tiers.locations.root
    assert root is not None
    if Catalog(OsFileSystem(), root).read_topic(meta.name).topic_id != meta.topic_id:
        raise TopicNotFound(f"topic {meta.name!r} was deleted and created again")
    start, end = split.start_offset, split.end_offset
    snapshot = snapshot_partition(tiers, meta, split.partition, view=None, start_offset=start, end_offset=end)
    if snapshot.end_offset < end:
        raise OffsetOutOfRange(
            f"offset {end} of topic {meta.name!r} partition {split.partition} is not there; the log has "
            f"{snapshot.start_offset} to {snapshot.end_offset}",
            start=snapshot.start_offset,
            end=snapshot.end_offset,
        )
    for piece in snapshot.splits:
        yield from read_split(tiers, meta, piece, query)


def release_segments(remote: RemoteLocations) -> None:
    """Close local segment files. An evicted file that a process holds open keeps its disk space."""
    _tiers(remote).release_segments()


@lru_cache(maxsize=16)
def _tiers(remote: RemoteLocations) -> Tiers:
    return Tiers(remote.on_this_host())


def _connection(remote: RemoteLocations) -> Connection:
    # Read the token each time: its file may have a new one.
    options = connect_options(Settings.load(remote.config), None)
    if remote.instance is not None:
        server = _running_instance(remote, remote.instance)
        provable = server.asks_token or server.secret is not None
        token = options.token if server.asks_token else None
        options = replace(options, token=token, instance=server if provable else None)
    return _open_connection(remote.location, options)


def _running_instance(remote: RemoteLocations, server: Instance) -> Instance:
    """Return a server's instance with its secret, which the store's directory has; without it on another host.

    Raises
    ------
    ServerUnavailable
        The server has ended, so waiting for it would be in vain.
    """
    root = remote.on_this_host().root
    if root is None:
        return server
    notice = read_notice(root)
    if notice is None or notice.instance != server.id:
        raise ServerUnavailable(f"{remote.location} serves {root} no more")
    return notice.server


@lru_cache(maxsize=16)
def _open_connection(location: str, options: ConnectOptions) -> Connection:
    return Connection(location, options)
