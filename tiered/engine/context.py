"""What an open store is made of, for whoever works on it: who it is, its settings, clock, tiers and state."""

from __future__ import annotations

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
from ..warm.known_files import KnownFiles
from .host import Host
from .lifecycle import Lifecycle


class Fencing(Protocol):
    """Who tells whether this disk may go on with a partition; see `tiering.claims.Claims`."""

    def head_before_appending(self, meta: TopicMeta, partition: int) -> Head | None: ...

    def check_not_behind(
        self, meta: TopicMeta, partition: int, writer: PartitionWriter, head: Head | None
    ) -> None: ...


class PublishedWait(Protocol):
    """Who waits until records are in the bucket; see `tiering.publisher.Publisher`."""

    def wait(self, meta: TopicMeta, partition: int, writer: PartitionWriter, end: int) -> None: ...


class StoreContext:
    """The parts of one open store.

    Attributes
    ----------
    url
        The directory or URL that was opened.
    settings
        Those in effect; others may take their place while the store is open.
    catalog
        Of the local directory, or of the bucket: see `engine.catalog.TopicCatalog`.
    pinned_producers
        Numbers of producers that no partition may forget.
    blocks
        Blocks that were read more than once of late.
    start_offsets
        What the files say in which partitions keep their start offset.
    fencing, publisher
        What appends need of the bucket; `tiering` brings them.
    """

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
        self.start_offsets: KnownFiles[int] = KnownFiles()
        self.write_counters = WriteCounters()
        self.pinned_producers: set[int] = set()
