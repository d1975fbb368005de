"""The claim of a store on its prefix of the bucket: ownership, topics that the bucket knows, tombstones (promise P7)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from uuid import UUID

from ..cold.manifest.restores import IntentWatch
from ..cold.manifest.store_documents import NoStore, StoreDocuments
from ..cold.object_store.probe import ProbeOutcome, check_conditional_writes
from ..cold.object_store.protocol import ObjectStore
from ..errors import ColdStorageError, CorruptionError, DiskFull, Fenced, UnsupportedFormat
from ..format.topic_meta import TopicMeta
from ..reader.tiers import Tiers
from ..warm.bucket_binding import read_binding, write_binding
from ..warm.catalog import Catalog
from ..warm.filesystem import FileSystem

log = logging.getLogger("tiered.claims")


class StoreClaim:
    """The claim of one open store on its prefix of the bucket. Thread-safe."""

    def __init__(self, tiers: Tiers, store_id: UUID, clock: Callable[[], int], fs: FileSystem) -> None:
        self._tiers = tiers
        self._store_id = store_id
        self._clock = clock
        self._fs = fs
        self.restores = IntentWatch()
        # Held during the requests that claim the prefix.
        self._prefix = threading.RLock()
        self._owns_prefix = False
        # What the bucket's document has as of the last claim.
        self._features: frozenset[str] = frozenset()
        self._catalog: Catalog | None = None
        self._announced: dict[UUID, TopicMeta] = {}
        self._documents_lineage = 1  # the lineage for documents of the store, as of the last read
        self._conditional_writes = ProbeOutcome()
        self._lock = threading.Lock()

    @property
    def documents_lineage(self) -> int:
        """The lineage for documents of the store, as of the last claim."""
        return self._documents_lineage

    def check_restores(self) -> None:
        """Raise while the store is being restored elsewhere; sends one GET every few seconds.

        Raises
        ------
        RestoreUnderWay
        """
        if self._owns_prefix:  # else `check_owner` comes first, and checks the same
            self.restores.check(StoreDocuments(self._tiers.object_store))

    def check_owner(self) -> bool:
        """Check that the prefix belongs to this store; return False if it belongs to no store yet.

        Raises
        ------
        ConfigError, Fenced
            The prefix belongs to another store, or the store was restored elsewhere.
        RestoreUnderWay
        ColdStorageError, CorruptionError, UnsupportedFormat
        """
        try:
            self._claim_store(StoreDocuments(self._tiers.object_store), may_begin=False)
        except NoStore:
            return False
        return True

    def claim(self) -> None:
        """Claim the prefix, also before anything is published.

        Raises
        ------
        ConfigError, Fenced, RestoreUnderWay, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        self._own_prefix(StoreDocuments(self._tiers.object_store))

    def _claim_store(self, bucket: StoreDocuments, *, may_begin: bool = True) -> None:
        """Claim the prefix for this store; the claim gives up a restore that was cut short."""
        catalog = self._local_catalog
        features = catalog.features()
        self._documents_lineage = bucket.claim_store(
            self._store_id,
            catalog.lineage(),
            left_seconds=lambda intent: self.restores.left_seconds(bucket, intent),
            may_begin=may_begin,
            features=features,
        )
        self._features = features
        self.restores.clear()

    @property
    def _local_catalog(self) -> Catalog:
        if self._catalog is None:
            root = self._tiers.locations.root
            assert root is not None
            self._catalog = Catalog(self._fs, root)
        return self._catalog

    @property
    def _features_are_known(self) -> bool:
        """Whether the bucket's document has the features of this store, so that older releases refuse it."""
        return self._tiers.locations.root is None or self._local_catalog.features() <= self._features

    def _own_prefix(self, bucket: StoreDocuments) -> None:
        known = self._features_are_known  # which reads a file, so no lock is held
        with self._prefix:
            if self._owns_prefix and known:
                return
            if bucket.read_store_id() is None:
                self._conditional_writes.check(lambda: check_conditional_writes(bucket.store))
            self._claim_store(bucket)
            root = self._tiers.locations.root
            if root is not None and not (binding := read_binding(root)).claimed:
                claimed = replace(binding, url=self._tiers.locations.cold_url, claimed=True)
                try:
                    write_binding(self._fs, root, claimed)
                except DiskFull as error:  # as in `Claims._write_lineage`
                    log.info("the claim of the bucket is not on the disk yet: %s", error)
                    return
            self._owns_prefix = True

    # -- topics ----------------------------------------------------------------------------------

    def is_announced(self, meta: TopicMeta) -> bool:
        """Whether this process has written the topic's document, as it is now or in a later state."""
        newest = self._announced.get(meta.topic_id)
        known = self._owns_prefix and newest is not None and _includes(newest, meta)
        return known and self._features_are_known

    def announce(self, meta: TopicMeta, *, briefly: bool = False) -> None:
        """Claim the prefix, and write the topic's document to the bucket.

        Parameters
        ----------
        briefly
            Send each request once, with short timeouts.

        Raises
        ------
        TopicNotFound
            The topic has a tombstone.
        ConfigError, Fenced, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        with self.brief_connection() if briefly else nullcontext(self._tiers.object_store) as store:
            bucket = StoreDocuments(store)
            self._own_prefix(bucket)
            try:
                bucket.put_topic(meta.to_json(), self._documents_lineage)
            except Fenced:
                # Perhaps by a restore that began since the claim, and that runs still or was cut short.
                self._claim_store(bucket)
                bucket.put_topic(meta.to_json(), self._documents_lineage)
        with self._lock:
            self._announced[meta.topic_id] = meta

    def check_may_write_tombstone(self, meta: TopicMeta) -> None:
        """Raise what `write_tombstone` would raise, before the deletion begins: a deletion cannot be undone.

        Raises
        ------
        Fenced
            A newer lineage has the store, or the topic.
        ConfigError, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        if self._tiers.has_cold:
            bucket = StoreDocuments(self._tiers.object_store)
            if self._owns(bucket):
                bucket.check_may_write_tombstone(meta.name, meta.topic_id, self._documents_lineage)

    def write_tombstone(self, meta: TopicMeta, *, briefly: bool = False) -> None:
        """Write the tombstone of a topic that is deleted on this disk.

        It is written even if the bucket does not know the topic: a pass in another process may be announcing it now.

        Parameters
        ----------
        briefly
            Send each request once, with short timeouts.

        Raises
        ------
        Fenced
            A newer lineage has the store, or the topic.
        ConfigError, ColdStorageError, CorruptionError, UnsupportedFormat
        """
        if not self._tiers.has_cold:
            return
        with self.brief_connection() if briefly else nullcontext(self._tiers.object_store) as store:
            bucket = StoreDocuments(store)
            if self._owns(bucket):
                lineage = self._documents_lineage
                bucket.tombstone(meta.name, meta.topic_id, deleted_us=self._clock(), lineage=lineage)

    def _owns(self, bucket: StoreDocuments) -> bool:
        """Claim the prefix; return False if it belongs to another store, which has no object of this one."""
        if bucket.read_store_id() not in (None, self._store_id):
            return False
        self._own_prefix(bucket)
        self._claim_store(bucket)
        return True

    def keep_only(self, topic_ids: Collection[UUID]) -> None:
        """Drop the state of all topics but these."""
        with self._lock:
            for topic_id in self._announced.keys() - set(topic_ids):
                del self._announced[topic_id]

    # -- requests without retries ----------------------------------------------------------------

    def bucket_answers(self) -> bool:
        """Whether the bucket answers one request, without retries and with short timeouts."""
        try:
            with self.brief_connection() as store:
                StoreDocuments(store).read_store_id()
        except ColdStorageError:
            return False
        except (CorruptionError, UnsupportedFormat):
            return True  # a damaged answer is an answer
        return True

    @contextmanager
    def brief_connection(self) -> Iterator[ObjectStore]:
        """Connect to the bucket without retries and with short timeouts."""
        options = self._tiers.locations.cold_options
        brief = replace(options, attempts=1, connect_timeout_seconds=2.0, read_timeout_seconds=5.0)
        with self._tiers.borrow(brief) as store:
            yield store


def _includes(newest: TopicMeta, meta: TopicMeta) -> bool:
    """Whether `newest` is `meta`, or a later state of it."""
    return newest.partitions >= meta.partitions and newest.schemas[: len(meta.schemas)] == meta.schemas
