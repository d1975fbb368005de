"""The verification of a store: its documents, partitions and bucket. It raises no error for damage and changes no data."""

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
from .damage_memory import DamageMemory
from .documents import (
    check_bucket_document,
    check_bucket_topic,
    check_deletions,
    check_ledgers,
    check_store_document,
    check_topic_document,
    local_topic_names,
)
from .findings import FileVanished, Findings, Progress
from .partitions import VerifiedTiers, check_partition_tiers
from .report import Item, Problem, VerifyReport
from .segments import check_segment
from .tables import check_table


def verify_store(
    access: Tiers,
    *,
    deep: bool = False,
    progress: Progress | None = None,
    memory: DamageMemory | None = None,
) -> VerifyReport:
    """Verify the files and objects of a store.

    Parameters
    ----------
    access
        The store's tiers. Any part of the store may be damaged, and the bucket may not answer.
    deep
        Read and check every byte. Otherwise check headers, footers, indexes, manifests, and that objects exist.
    progress
        Called with each read.
    memory
        Stores the damaged objects; None for a store that must not be changed.
    """
    findings = Findings(progress)
    where = str(access.locations.root or access.locations.cold_url)
    with findings.guard(Item.LOG, where):
        _Verifier(access, deep, findings, memory).run()
    return VerifyReport(
        where, deep, tuple(findings.problems), tuple(findings.unknown),
        findings.segments, findings.blocks, findings.objects, findings.bytes,
    )  # fmt: skip


def bucket_topics(store: ObjectStore) -> Iterator[tuple[str, UUID]]:
    """Yield name and id of every topic with a folder in a bucket, including deleted topics."""
    bucket = StoreDocuments(store)
    for folder in store.folders(""):
        name = topic_of_folder(folder)
        if name is not None:
            yield from ((name, topic_id) for topic_id in bucket.topic_ids(name))


def find_bucket_topic(store: ObjectStore, name: str, findings: Findings) -> TopicMeta | None:
    """Return the only live topic of this name in the bucket; None if there is none, or if there are two."""
    bucket, topics = StoreDocuments(store), []
    with findings.guard(Item.DOCUMENT, f"{store.url.rstrip('/')}/{name}"):
        for topic_id in bucket.topic_ids(name):
            meta = _read_topic(bucket, name, topic_id, findings)
            topics += [meta] if meta is not None else []
    return topics[0] if len(topics) == 1 else None


def _read_topic(bucket: StoreDocuments, name: str, topic_id: UUID, findings: Findings) -> TopicMeta | None:
    where = f"{bucket.store.url.rstrip('/')}/{topic_key(name, topic_id)}"
    with findings.guard(Item.DOCUMENT, where, position=0):
        values = bucket.read_topic(name, topic_id)
        if values is None:
            raise CorruptionError("is missing beside objects", where=where, position=0)
        return None if DELETED in values else TopicMeta.from_json(values, where=where)
    return None


class _Verifier:
    def __init__(self, access: Tiers, deep: bool, findings: Findings, memory: DamageMemory | None) -> None:
        self._access = access
        self._root = access.locations.root
        self._deep = deep
        self._findings = findings
        self._memory = memory

    def run(self) -> None:
        findings, root = self._findings, self._root
        store_id = check_store_document(root, findings) if root is not None else None
        store = self._connect()
        in_bucket: list[tuple[str, UUID]] = []
        if store is not None:
            with findings.guard(Item.LOG, store.url):
                in_bucket = list(bucket_topics(store))
            bucket_id = check_bucket_document(StoreDocuments(store), store_id, bool(in_bucket), findings)
            store_id = store_id or bucket_id
        check_ledgers(root, None if store is None else StoreDocuments(store), findings)
        tiers = VerifiedTiers(
            root, store, store_id, cold_known=not self._access.has_cold and self._has_valid_binding()
        )
        known: set[UUID] = set()
        for name in local_topic_names(root, findings) if root is not None else []:
            with self._topic(name):
                known |= self._local_topic(tiers, name, in_bucket)
        # After the topics: one that was deleted meanwhile is among the deletions, or has its tombstone.
        known |= check_deletions(root, findings) if root is not None else set()
        for name, topic_id in in_bucket:
            if topic_id not in known:
                with self._topic(name):
                    self._bucket_topic(tiers, name, topic_id)

    @contextmanager
    def _topic(self, name: str) -> Iterator[None]:
        self._findings.topic, self._findings.partition = name, None
        with self._findings.guard(Item.LOG, name):
            yield
        self._findings.topic, self._findings.partition = "", None

    def _has_valid_binding(self) -> bool:
        """Whether the binding to the bucket is sound, so that a store without one has no bucket."""
        return not any(problem.where.endswith("cold.json") for problem in self._findings.problems)

    def _connect(self) -> ObjectStore | None:
        """Return the bucket if it answers; otherwise no other request is made, because each would take all retries."""
        if not self._access.has_cold:
            return None
        findings = self._findings.empty_copy()
        url = self._access.locations.cold_url or ""
        store = None
        with findings.guard(Item.LOG, url):
            with self._access.borrow(self._access.locations.cold_options.for_a_look()) as looking:
                next(looking.list("store.json/"), None)
            store = self._access.object_store
        for item in findings.unknown:
            self._findings.add_unknown(url, f"the bucket was not checked: {item.reason}")
        return store if not findings.unknown else None

    def _local_topic(self, tiers: VerifiedTiers, name: str, in_bucket: list[tuple[str, UUID]]) -> set[UUID]:
        assert self._root is not None
        directory = self._root / TOPICS_DIRECTORY / name
        meta = check_topic_document(self._root, name, self._findings)
        if meta is None and tiers.bucket is not None:
            meta = find_bucket_topic(tiers.bucket, name, self._findings.empty_copy())
        if meta is None:
            self._without_document(directory)
            return {topic_id for other, topic_id in in_bucket if other == name}
        if tiers.bucket is not None:
            published = (name, meta.topic_id) in in_bucket
            check_bucket_topic(StoreDocuments(tiers.bucket), meta, published, self._findings)
        for partition in range(meta.partitions):
            self._findings.partition = partition
            self._partition(tiers, meta, partition, directory / str(partition))
        self._findings.partition = None
        if tiers.bucket is not None:
            check_table(tiers.bucket, meta, self._findings)
        return {meta.topic_id}

    def _without_document(self, directory: Path) -> None:
        """Check the segments of a topic whose schema is unknown."""
        for partition in sorted(path for path in directory.iterdir() if path.is_dir()):
            names = list_segments(partition).segments
            for i, name in enumerate(names):
                hint = names[i + 1].base_offset if i + 1 < len(names) else None
                path = partition / str(name)
                try:
                    with self._findings.guard(Item.SEGMENT, str(path)):
                        check_segment(
                            path,
                            newest=i + 1 == len(names),
                            end_hint=hint,
                            deep=self._deep,
                            findings=self._findings,
                        )
                except FileVanished:
                    self._findings.add_unknown(str(path), "moved while it was checked")

    def _bucket_topic(self, tiers: VerifiedTiers, name: str, topic_id: UUID) -> None:
        assert tiers.bucket is not None
        meta = _read_topic(StoreDocuments(tiers.bucket), name, topic_id, self._findings)
        if meta is None:
            return
        if self._root is not None and not (self._root / TOPICS_DIRECTORY / name).is_dir():
            where = str(self._root / TOPICS_DIRECTORY / name)
            self._findings.add_problem(
                Problem(Item.LOG, where, "the topic is in the bucket, and its directory is missing")
            )
        for partition in range(meta.partitions):
            self._findings.partition = partition
            self._partition(tiers, meta, partition, None)
        self._findings.partition = None
        check_table(tiers.bucket, meta, self._findings)

    def _partition(
        self, tiers: VerifiedTiers, meta: TopicMeta, partition: int, directory: Path | None
    ) -> None:
        findings = self._findings.empty_copy()
        where = str(directory) if directory is not None else f"{meta.name}/{partition}"
        try:
            with findings.guard(Item.LOG, where):
                check_partition_tiers(tiers, meta, partition, directory, deep=self._deep, findings=findings)
        except FileVanished:
            findings.add_unknown(where, "files keep moving while they are checked")
        if self._memory is not None and directory is not None and tiers.bucket is not None:
            data = PartitionKeys.of(meta.name, meta.topic_id, partition).data_prefix
            self._memory.record(directory, f"{tiers.bucket.url.rstrip('/')}/{data}", findings)
        self._findings.add(findings)
