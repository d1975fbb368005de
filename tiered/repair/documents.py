"""Repairs of damaged documents whose content follows from other files or objects, without a guess."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from ..cold.manifest.erasures import read_ledger
from ..cold.manifest.keys import STORE_KEY, topic_key
from ..cold.manifest.restore_intent import LINEAGE, intent_of
from ..cold.manifest.store_documents import DELETE_AGAIN, DELETED, DELETED_IN_BUCKET, StoreDocuments
from ..cold.object_store.protocol import ObjectStore
from ..cold.object_store.rereads import reread_on_damage
from ..cold.upkeep.rebuild import DAMAGED_FOLDER
from ..errors import ColdStorageError, ConfigError, CorruptionError, ObjectNotFound, PreconditionFailed
from ..format.document import FEATURES, STAGED_FEATURE, TRANSACTIONS_FEATURE, decode_document, encode_document
from ..format.erasure import LEDGER_FILE, ledger_to_json
from ..format.schema import TRANSACTIONS_TOPIC
from ..format.topic_meta import TopicMeta
from ..transactions.parts import PARTS_COLUMNS
from ..transactions.staged_rows import STAGED_COLUMNS
from ..verify.findings import FileVanished, Findings
from ..verify.invariants import Evidence
from ..verify.report import Repair
from ..verify.segments import SegmentCheck, check_segment
from ..verify.verifier import find_bucket_topic
from ..warm.bucket_binding import COLD_FILE, BucketBinding, write_binding
from ..warm.catalog import STORE_FILE, TOPIC_FILE, TOPICS_DIRECTORY, Catalog
from ..warm.document_file import write_document
from ..warm.erasure_ledger import ErasureLedger
from ..warm.partition_directory import (
    FENCED_FILE,
    LINEAGE_FILE,
    START_FILE,
    SWEEP_FILE,
    list_segments,
    write_fence,
    write_lineage,
    write_marks,
    write_start_offset,
)
from .quarantine import RepairContext, copy_aside


def repair_document(context: RepairContext, path: Path, facts: Evidence | None) -> Repair:
    """Repair one local document; `facts` is the evidence of its partition, if it belongs to one.

    Raises
    ------
    CorruptionError
        The content of the document is unknown; nothing was changed.
    """
    root = context.access.locations.root
    assert root is not None
    if path == root / STORE_FILE:
        return _store(context, path)
    if path == root / COLD_FILE:
        return _cold(context, path)
    if path == root / LEDGER_FILE:
        return _ledger(context, path)
    if path.name == TOPIC_FILE:
        return _topic(context, path)
    if facts is None:
        raise CorruptionError("nothing is known of its partition")
    if path.name == START_FILE:
        return _start(context, path, facts)
    if path.name == LINEAGE_FILE:
        return _lineage(context, path, facts)
    if path.name == FENCED_FILE:
        kept = copy_aside(context.fs, path)
        write_fence(context.fs, path.parent, "the mark was damaged and repaired; its reason is not known")
        return Repair(str(path), "marked the partition as fenced again", "done", kept=kept)
    if path.name == SWEEP_FILE:
        kept = copy_aside(context.fs, path)
        write_marks(context.fs, path.parent, {})
        return Repair(str(path), "wrote it empty: sweeps count their grace anew", "done", kept=kept)
    raise CorruptionError("its content is stored nowhere else")


def _headers(directory: Path) -> Iterator[SegmentCheck]:
    for name in list_segments(directory).segments:
        try:
            check = check_segment(
                directory / str(name), newest=True, end_hint=None, deep=False, findings=Findings()
            )
        except FileVanished:
            continue
        if check.header is not None:
            yield check


def _partitions(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_dir()) if directory.is_dir() else []


def _store(context: RepairContext, path: Path) -> Repair:
    """Write the id that all segments have, and the known features; after a restore, only the lost document had the lineage."""
    topics = path.parent / TOPICS_DIRECTORY
    ids = {
        check.header.store_id
        for topic in _partitions(topics)
        for partition in _partitions(topic)
        for check in _headers(partition)
        if check.header is not None
    }
    features: set[str] = set()
    if context.access.has_cold:
        values = _bucket_values(context.access.object_store, STORE_KEY)
        if values is not None:
            ids.add(UUID(values["id"]))
            features.update(values.get(FEATURES, ()))
            if values.get(LINEAGE, 1) != 1:
                raise CorruptionError("the store was restored once; the lineage of this disk is not known")
    if len(ids) != 1:
        raise CorruptionError(f"{len(ids)} different ids of a store were found")
    kept = copy_aside(context.fs, path)
    content: dict[str, Any] = {"id": str(ids.pop())}
    for columns, feature in ((PARTS_COLUMNS, TRANSACTIONS_FEATURE), (STAGED_COLUMNS, STAGED_FEATURE)):
        if _has_columns(topics / TRANSACTIONS_TOPIC, columns.names):
            features.add(feature)
    if features:
        content[FEATURES] = sorted(features)
    write_document(context.fs, path, content)
    return Repair(str(path), "wrote the id that every segment bears", "done", kept=kept)


def _has_columns(topic: Path, names: list[str]) -> bool:
    """Whether a segment of a topic has these columns."""
    return any(
        check.header is not None and set(names) <= set(check.header.schema.names)
        for partition in _partitions(topic)
        for check in _headers(partition)
    )


def _bucket_values(store: ObjectStore, key: str) -> dict[str, Any] | None:
    try:
        return reread_on_damage(lambda: decode_document(store.get(key).data, where=key))
    except ObjectNotFound:
        return None


def _cold(context: RepairContext, path: Path) -> Repair:
    locations = context.access.locations
    if locations.cold_url is None:
        raise ConfigError(
            "name the bucket by --cold or in the settings; it is checked against the store's id"
        )
    if (
        context.store_id is None
        or StoreDocuments(context.access.object_store).read_store_id() != context.store_id
    ):
        raise ConfigError(f"{locations.cold_url} does not have this store's id")
    kept = copy_aside(context.fs, path)
    options = locations.cold_options
    write_binding(
        context.fs,
        path.parent,
        BucketBinding(locations.cold_url, options.endpoint_url, options.region, claimed=True),
    )
    return Repair(str(path), f"wrote {locations.cold_url}, which has this store's id", "done", kept=kept)


def _topic(context: RepairContext, path: Path) -> Repair:
    """Copy the document from the bucket, if it is of this topic and has all schemas of the local segments."""
    if not context.access.has_cold:
        raise CorruptionError("the names of the key and timestamp columns are stored nowhere else")
    meta = find_bucket_topic(context.access.object_store, path.parent.name, Findings())
    if meta is None:
        raise CorruptionError("the bucket has no sound copy of it")
    partitions = _partitions(path.parent)
    for check in (check for partition in partitions for check in _headers(partition)):
        header = check.header
        assert header is not None
        if header.topic_id != meta.topic_id or header.schema_id >= len(meta.schemas):
            raise CorruptionError(
                f"{check.path} is of another topic, or of a schema that the bucket does not know"
            )
    kept = copy_aside(context.fs, path)
    counts = [int(item.name) + 1 for item in partitions if item.name.isdigit()]
    meta = replace(meta, partitions=max([meta.partitions, *counts]))
    write_document(context.fs, path, meta.to_json())
    return Repair(str(path), "took the copy from the bucket", "done", kept=kept)


def _ledger(context: RepairContext, path: Path) -> Repair:
    """Take the ledger of erasures from the bucket, where each pass brings it; the next pass fetches the values."""
    if not context.access.has_cold:
        raise CorruptionError("its content is stored nowhere else")
    documents = StoreDocuments(context.access.object_store)
    if documents.read_store_id() not in (None, context.store_id):
        raise CorruptionError("the bucket does not have this store's id, so its ledger may be another one's")
    lineage = Catalog(context.fs, path.parent).lineage()
    documents.check_lineage(LEDGER_FILE, documents.read(LEDGER_FILE) or {}, lineage)
    erasures = read_ledger(documents)
    kept = copy_aside(context.fs, path)
    ErasureLedger(context.fs, path.parent).begin(erasures)
    action = f"took the copy from the bucket, with {len(erasures)} erasures"
    why = "one that was called here after the last pass is not among them: call it again"
    return Repair(str(path), action, "done", why, kept)


def _start(context: RepairContext, path: Path, facts: Evidence) -> Repair:
    """Write the highest start offset in other files and the manifest; records removed since then may reappear."""
    if facts.entries is None:
        raise CorruptionError("the bucket, which may have the start offset, does not answer")
    sealed = [check.footer.facts.start_offset for check in facts.segments or () if check.footer is not None]
    start = max([0, *sealed, facts.head.start_offset if facts.head is not None else 0])
    bases = [check.name.base_offset for check in (facts.segments or ())[:1]]
    bases += [entry.base_offset for entry in facts.entries[:1]]
    if facts.entries_whole:  # otherwise the log may begin on a damaged page
        start = max(start, min(bases, default=0))
    kept = copy_aside(context.fs, path)
    write_start_offset(context.fs, path.parent, start)
    why = "records that retention or delete_before removed since that was last written may reappear"
    return Repair(str(path), f"wrote the start offset {start}", "done", why, kept)


def _lineage(context: RepairContext, path: Path, facts: Evidence) -> Repair:
    if facts.lineage is not None:
        raise CorruptionError("it is sound: the bucket has another lineage, or lost this one")
    if facts.head is None or len(facts.head.lineages) != 1:
        raise CorruptionError("the lineage of this disk is stored nowhere else")
    kept = copy_aside(context.fs, path)
    write_lineage(context.fs, path.parent, facts.head.lineage_epoch)
    return Repair(
        str(path), f"wrote lineage {facts.head.lineage_epoch}, the only one there is", "done", kept=kept
    )


def repair_bucket_document(context: RepairContext, key: str, topics: list[TopicMeta]) -> Repair:
    """Write ``store.json``, ``erasures.json`` or a ``topic.json`` of the bucket again from the local document.

    Raises
    ------
    CorruptionError
        Another store, or a restore of this one, may own the prefix; or the present document is sound.
    ColdStorageError
    """
    root = context.access.locations.root
    if root is None or context.store_id is None:
        raise CorruptionError("only the local store knows its content")
    store = context.access.object_store
    where = f"{store.url.rstrip('/')}/{key}"
    lineage = Catalog(context.fs, root).lineage()
    values: dict[str, Any] | None = None
    if key == STORE_KEY:
        values = {"id": str(context.store_id)}
        others = [topic_key(meta.name, meta.topic_id) for meta in topics]
    elif key == LEDGER_FILE:
        values = ledger_to_json(ErasureLedger(context.fs, root).read())
        others = [STORE_KEY]
    else:
        meta = next((meta for meta in topics if topic_key(meta.name, meta.topic_id) == key), None)
        values = meta.to_json() if meta is not None else None
        others = [STORE_KEY]
    if values is None:
        raise CorruptionError("this store has no such topic")
    for other in others:
        bucket_lineage, resumed_lineage = _lineages_in_bucket(store, other)
        if bucket_lineage > lineage != resumed_lineage:
            raise CorruptionError("the store was restored elsewhere, so this disk does not own the prefix")
        if resumed_lineage == lineage:
            lineage = bucket_lineage  # a restore was abandoned: its lineage stays in the documents
    if lineage > 1:
        values[LINEAGE] = lineage
    etag, damaged_copy = None, ""
    try:
        damaged = store.get(key)
    except ObjectNotFound:
        pass
    else:
        _check_damaged(damaged.data, where, str(values.get("name", "")))
        etag = damaged.etag
        name = f"{DAMAGED_FOLDER}/{uuid4()}-{key.replace('/', '-')}"
        store.put(name, damaged.data, if_none_match=True)
        damaged_copy = f"{store.url.rstrip('/')}/{name}"
    data = encode_document(values)
    try:
        store.put(key, data, if_match=etag, if_none_match=etag is None)
    except ColdStorageError as error:
        # After a lost answer, or a retry by the client, only the present content shows whether the write succeeded.
        if not (error.retryable or isinstance(error, PreconditionFailed)) or store.get(key).data != data:
            raise
    return Repair(where, "wrote the local store's document", "done", kept=damaged_copy)


def _check_damaged(data: bytes, where: str, topic: str) -> None:
    """Raise if a document is sound: it may be a tombstone, or the document of another store."""
    try:
        document = decode_document(data, where=where)
    except CorruptionError:
        return
    if DELETED in document:
        raise CorruptionError(f"it is sound: {DELETED_IN_BUCKET}; {DELETE_AGAIN.format(name=topic)}")
    raise CorruptionError("it is sound, and differs from the local store's document")


def _lineages_in_bucket(store: ObjectStore, key: str) -> tuple[int, int | None]:
    """Return the lineage in a document, and after an abandoned restore the lineage of the store that continued."""
    try:
        values = _bucket_values(store, key)
    except CorruptionError:
        return 1, None  # damaged, too, so the lineage is unknown
    lineage = int(values.get(LINEAGE, 1)) if values is not None else 1
    intent = intent_of(values, lineage) if values is not None else None
    return lineage, intent.of if intent is not None and not intent.under_way else None
