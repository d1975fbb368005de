"""`StoreContext`: the parts of an open store that its topics, passes and monitors share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from uuid import UUID

from ..format.manifest import Head
from ..format.topic_meta import TopicMeta
from ..hot.partition_writer import PartitionWriter
from ..hot.recent_blocks import HotMemory
from ..hot.write_counters import WriteCounters
from ..reader.block_cache import BlockCache
from ..reader.tiers import Tiers
from ..settings.settings import Settings
from ..warm.erasure_ledger import ErasureLedger
from ..warm.file_value_cache import FileValueCache
from .host import Host
from .lifecycle import Lifecycle


class Fencing(Protocol):
    """The check that this disk still owns a partition; see `tiering.claims.Claims`."""

    def head_before_appending(self, meta: TopicMeta, partition: int) -> Head | None: ...

    def check_not_behind(
        self, meta: TopicMeta, partition: int, writer: PartitionWriter, head: Head | None
    ) -> None: ...

    def end_in_bucket(self, meta: TopicMeta, partition: int, *, ask: bool) -> int | None: ...

    def begin_partitions(self, before: TopicMeta, after: TopicMeta) -> None: ...

    def announce_partitions(self, meta: TopicMeta) -> None: ...


class PublishedWait(Protocol):
    """The wait until records are published; see `tiering.publisher.Publisher`."""

    def wait(self, meta: TopicMeta, partition: int, writer: PartitionWriter, end: int) -> None: ...


Place = tuple[UUID, int]
"""A topic's id and a partition."""


class Reading(Protocol):
    """A read of partitions, which sees each transaction wholly or not; it begins before their ends are taken."""

    def whole_ends(self, ends: Mapping[Place, int]) -> dict[Place, int] | None:
        """Return the ends, lower where a partition has rows of a transaction that others lack; None: take them again."""
        ...


class Transactions(Protocol):
    """The transactions of a store, for openings and reads of partitions; see `transactions.commits.Commits`."""

    def complete(self, meta: TopicMeta, partition: int, writer: PartitionWriter) -> None: ...

    def begin_reading(self) -> Reading: ...

    def begin_reading_one(self, meta: TopicMeta) -> Reading | None: ...

    def log_end_before(self, meta: TopicMeta, partition: int) -> int | None: ...

    def participants(self) -> list[TopicMeta]: ...

    def shorten_log(self, offset: int) -> None: ...

    def shorten_log_soon(self, offset: int) -> None: ...

    def resume(self) -> None: ...


class StoreContext:
    """The parts of one open store.

    Attributes
    ----------
    url
        The directory or URL that was opened.
    settings
        The settings in effect; a reload replaces them while the store is open.
    catalog
        The topics: `warm.catalog.Catalog` of a directory, or `BucketCatalog`, which only reads, of a bucket.
    pinned_producers
        Numbers of producers that no partition may forget.
    blocks
        The cache of blocks that were read more than once recently.
    start_offsets, lineages
        The caches of start offsets and lineages of partitions, by file.
    erasures
        The ledger of erasures in the store's directory; None for a bucket alone.
    fencing, publisher
        The ports of appends to the bucket; `tiering` implements them.
    commits
        The port of openings and reads to the transaction log; `transactions` implements it.
    """

    commits: Transactions
    fencing: Fencing
    publisher: PublishedWait

    def __init__(
        self,
        settings: Settings,
        host: Host,
        tiers: Tiers,
        catalog: Any,
        store_id: UUID,
        url: str,
        *,
        writes: bool,
    ) -> None:
        self.settings = settings
        self.host = host
        self.clock = host.clock
        self.fs = host.fs
        self.tiers = tiers
        self.catalog = catalog
        self.store_id = store_id
        self.url = url
        self.lifecycle = Lifecycle(url, writes=writes)
        self.memory = HotMemory(settings.store.hot_bytes)
        self.blocks = tiers.blocks = BlockCache(self.memory)
        self.start_offsets: FileValueCache[int] = FileValueCache()
        self.lineages: FileValueCache[int | None] = FileValueCache()
        self.write_counters = WriteCounters()
        self.pinned_producers: set[int] = set()
        root = tiers.locations.root
        self.erasures = None if root is None else ErasureLedger(self.fs, root)
