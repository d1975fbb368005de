"""Verify a store: its documents, every partition, its bucket. Never raises for damage, never changes data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from ..cold.manifest.keys import PartitionKeys, topic_key, topic_of_folder
from ..cold.manifest.store_documents import DELETED, StoreDocuments
from ..cold.object_store.protocol import ObjectStore
from ..errors import CorruptionError
from ..format.topic_meta import TopicMeta
from ..reader.tiers import Tiers
from ..warm.catalog import TOPICS_DIRECTORY
from ..warm.partition_directory import list_segments
from .damage_memory import Memory
from .documents import (
    check_bucket_document,
    check_bucket_topic,
    check_deletions,
    check_store_document,
    check_topic_document,
    local_topic_names,
)
from .notes import Gone, Notes, Progress
from .partitions import VerifiedTiers, check_partition_tiers
from .report import Item, Problem, VerifyReport
from .segments import check_segment


def verify_store(
    access: Tiers,
    *,
    deep: bool = False,
    progress: Progress | None = None,
    memory: Memory | None = None,
) -> VerifyReport:
    """Look at everything that a store has, on disk and in its bucket.

    Parameters
    ----------
    access
        Where its tiers lie. Nothing of the store needs to be sound, nor a bucket within reach.
    deep
        Read and check every byte; else headers, footers, indexes, manifests, and that objects are there.
    progress
        Told what is read.
    memory
        Where it is remembered which objects are damaged; None for a store that must not be written to.
    """
    notes = Notes(progress)
    places = access.locations
    with notes.guard(Item.LOG, str(places.root or places.cold_url)):
        _Verifier(access, deep, notes, memory).run()
    return VerifyReport(
        str(places.root or places.cold_url), deep, tuple(notes.problems), tuple(notes.unknown),
        notes.segments, notes.blocks, notes.objects, notes.bytes,
    )  # fmt: skip


def bucket_topics(store: ObjectStore) -> Iterator[tuple[str, UUID]]:
    """Yield name and id of every topic that has a folder in a bucket, deleted ones too."""
    bucket = StoreDocuments(store)
    for folder in store.folders(""):
        name = topic_of_folder(folder)
        if name is not None:
            yield from ((name, topic_id) for topic_id in bucket.topic_ids(name))


def find_bucket_topic(store: ObjectStore, name: str, notes: Notes) -> TopicMeta | None:
    """Return the one live topic of this name as the bucket knows it; None where it does not, or knows two."""
    bucket, found = StoreDocuments(store), []
    with notes.guard(Item.DOCUMENT, f"{store.url.rstrip('/')}/{name}"):
        for topic_id in bucket.topic_ids(name):
            meta = _read_topic(bucket, name, topic_id, notes)
            found += [meta] if meta is not None else []
    return found[0] if len(found) == 1 else None


def _read_topic(bucket: StoreDocuments, name: str, topic_id: UUID, notes: Notes) -> TopicMeta | None:
    where = f"{bucket.store.url.rstrip('/')}/{topic_key(name, topic_id)}"
    with notes.guard(Item.DOCUMENT, where, position=0):
        values = bucket.read_topic(name, topic_id)
        if values is None:
            raise CorruptionError("is missing beside objects", where=where, position=0)
        return None if DELETED in values else TopicMeta.from_json(values, where=where)
    return None


class _Verifier:
    def __init__(self, access: Tiers, deep: bool, notes: Notes, memory: Memory | None) -> None:
        self._access = access
        self._root = access.locations.root
        self._deep = deep
        self._notes = notes
        self._memory = memory

    def run(self) -> None:
        notes, root = self._notes, self._root
        store_id = check_store_document(root, notes) if root is not None else None
        store = self._reach()
        in_bucket: list[tuple[str, UUID]] = []
        if store is not None:
            with notes.guard(Item.LOG, store.url):
                in_bucket = list(bucket_topics(store))
            bucket_id = check_bucket_document(StoreDocuments(store), store_id, bool(in_bucket), notes)
            store_id = store_id or bucket_id
        tiers = VerifiedTiers(
            root, store, store_id, cold_known=not self._access.has_cold and self._remembers_cold()
        )
        known: set[UUID] = set()
        for name in local_topic_names(root, notes) if root is not None else []:
            with self._topic(name):
                known |= self._local_topic(tiers, name, in_bucket)
        # After the topics: what was deleted since is among these, or has its tombstone.
        known |= check_deletions(root, notes) if root is not None else set()
        for name, topic_id in in_bucket:
            if topic_id not in known:
                with self._topic(name):
                    self._bucket_topic(tiers, name, topic_id)

    @contextmanager
    def _topic(self, name: str) -> Iterator[None]:
        self._notes.topic, self._notes.partition = name, None
        with self._notes.guard(Item.LOG, name):
            yield
        self._notes.topic, self._notes.partition = "", None

    def _remembers_cold(self) -> bool:
        """Whether the store's own document says where its bucket is, or that there is none."""
        return not any(problem.where.endswith("cold.json") for problem in self._notes.problems)

    def _reach(self) -> ObjectStore | None:
        """Return the bucket if it answers; one that does not is asked once, as each question takes all its retries."""
        if not self._access.has_cold:
            return None
        notes = self._notes.inner()
        url = self._access.locations.cold_url or ""
        store = None
        with notes.guard(Item.LOG, url):
            store = self._access.object_store
            next(store.list("store.json/"), None)
        for item in notes.unknown:
            self._notes.not_known(url, f"the bucket was not looked at: {item.reason}")
        return store if not notes.unknown else None

    def _local_topic(self, tiers: VerifiedTiers, name: str, in_bucket: list[tuple[str, UUID]]) -> set[UUID]:
        assert self._root is not None
        directory = self._root / TOPICS_DIRECTORY / name
        meta = check_topic_document(self._root, name, self._notes)
        if meta is None and tiers.bucket is not None:
            meta = find_bucket_topic(tiers.bucket, name, self._notes.inner())
        if meta is None:
            self._without_document(directory)
            return {topic_id for other, topic_id in in_bucket if other == name}
        if tiers.bucket is not None:
            published = (name, meta.topic_id) in in_bucket
            check_bucket_topic(StoreDocuments(tiers.bucket), meta, published, self._notes)
        for partition in range(meta.partitions):
            self._notes.partition = partition
            self._partition(tiers, meta, partition, directory / str(partition))
        self._notes.partition = None
        return {meta.topic_id}

    def _without_document(self, directory: Path) -> None:
        """Look at the segments of a topic of which nobody knows the schema."""
        for partition in sorted(path for path in directory.iterdir() if path.is_dir()):
            names = list_segments(partition).segments
            for i, name in enumerate(names):
                hint = names[i + 1].base_offset if i + 1 < len(names) else None
                path = partition / str(name)
                try:
                    with self._notes.guard(Item.SEGMENT, str(path)):
                        check_segment(
                            path,
                            newest=i + 1 == len(names),
                            end_hint=hint,
                            deep=self._deep,
                            notes=self._notes,
                        )
                except Gone:
                    self._notes.not_known(str(path), "moved while it was looked at")

    def _bucket_topic(self, tiers: VerifiedTiers, name: str, topic_id: UUID) -> None:
        assert tiers.bucket is not None
        meta = _read_topic(StoreDocuments(tiers.bucket), name, topic_id, self._notes)
        if meta is None:
            return
        if self._root is not None and not (self._root / TOPICS_DIRECTORY / name).is_dir():
            where = str(self._root / TOPICS_DIRECTORY / name)
            self._notes.problem(
                Problem(Item.LOG, where, "the topic is in the bucket, and its directory is missing")
            )
        for partition in range(meta.partitions):
            self._notes.partition = partition
            self._partition(tiers, meta, partition, None)

    def _partition(
        self, tiers: VerifiedTiers, meta: TopicMeta, partition: int, directory: Path | None
    ) -> None:
        notes = self._notes.inner()
        where = str(directory) if directory is not None else f"{meta.name}/{partition}"
        try:
            with notes.guard(Item.LOG, where):
                check_partition_tiers(tiers, meta, partition, directory, deep=self._deep, notes=notes)
        except Gone:
            notes.not_known(where, "files keep moving while they are looked at")
        if self._memory is not None and directory is not None and tiers.bucket is not None:
            data = PartitionKeys.of(meta.name, meta.topic_id, partition).data_prefix
            self._memory.note(directory, f"{tiers.bucket.url.rstrip('/')}/{data}", notes)
        self._notes.add(notes)
