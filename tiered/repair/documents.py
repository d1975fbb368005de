"""Write a damaged document anew where what it said can be told from elsewhere, without a guess."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from ..cold.manifest.keys import STORE_KEY, topic_key
from ..cold.manifest.restore_intent import LINEAGE, intent_of
from ..cold.manifest.store_documents import DELETE_AGAIN, DELETED, DELETED_IN_BUCKET, StoreDocuments
from ..cold.object_store.protocol import ObjectStore
from ..cold.object_store.rereads import reread_on_damage
from ..cold.upkeep.rebuild import DAMAGED_FOLDER
from ..errors import ColdStorageError, ConfigError, CorruptionError, ObjectNotFound, PreconditionFailed
from ..format.document import decode_document, encode_document
from ..format.topic_meta import TopicMeta
from ..verify.invariants import Evidence
from ..verify.notes import Gone, Notes
from ..verify.report import Repair
from ..verify.segments import SegmentCheck, check_segment
from ..verify.verifier import find_bucket_topic
from ..warm.bucket_binding import COLD_FILE, BucketBinding, write_binding
from ..warm.catalog import STORE_FILE, TOPIC_FILE, TOPICS_DIRECTORY, Catalog
from ..warm.filesystem import write_atomically
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
from .quarantine import Workshop, copy_aside


def repair_document(shop: Workshop, path: Path, facts: Evidence | None) -> Repair:
    """Repair one local document; `facts` are those of its partition, where it belongs to one.

    Raises
    ------
    CorruptionError
        What it said cannot be told; nothing was changed.
    """
    root = shop.access.locations.root
    assert root is not None
    if path == root / STORE_FILE:
        return _store(shop, path)
    if path == root / COLD_FILE:
        return _cold(shop, path)
    if path.name == TOPIC_FILE:
        return _topic(shop, path)
    if facts is None:
        raise CorruptionError("nothing is known of its partition")
    if path.name == START_FILE:
        return _start(shop, path, facts)
    if path.name == LINEAGE_FILE:
        return _lineage(shop, path, facts)
    if path.name == FENCED_FILE:
        kept = copy_aside(shop.fs, path)
        write_fence(shop.fs, path.parent, "the mark was damaged and repaired; why it was set is not known")
        return Repair(str(path), "marked the partition as fenced again", "done", kept=kept)
    if path.name == SWEEP_FILE:
        kept = copy_aside(shop.fs, path)
        write_marks(shop.fs, path.parent, {})
        return Repair(str(path), "wrote it empty: sweeps count their grace anew", "done", kept=kept)
    raise CorruptionError("nothing else says what was in it")


def _headers(directory: Path) -> Iterator[SegmentCheck]:
    for name in list_segments(directory).segments:
        try:
            look = check_segment(directory / str(name), newest=True, end_hint=None, deep=False, notes=Notes())
        except Gone:
            continue
        if look.header is not None:
            yield look


def _partitions(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_dir()) if directory.is_dir() else []


def _store(shop: Workshop, path: Path) -> Repair:
    """Take the id that every segment bears. After a restore nobody but the document knows which lineage it is."""
    topics = path.parent / TOPICS_DIRECTORY
    ids = {
        look.header.store_id
        for topic in _partitions(topics)
        for partition in _partitions(topic)
        for look in _headers(partition)
        if look.header is not None
    }
    if shop.access.has_cold:
        values = _bucket_values(shop.access.object_store, STORE_KEY)
        if values is not None:
            ids.add(UUID(values["id"]))
            if values.get(LINEAGE, 1) != 1:
                raise CorruptionError(
                    "the store was restored once; which of its lives this disk is, is not known"
                )
    if len(ids) != 1:
        raise CorruptionError(f"{len(ids)} different ids of a store were found")
    kept = copy_aside(shop.fs, path)
    write_atomically(shop.fs, path, encode_document({"id": str(ids.pop())}))
    return Repair(str(path), "wrote the id that every segment bears", "done", kept=kept)


def _bucket_values(store: ObjectStore, key: str) -> dict[str, Any] | None:
    try:
        return reread_on_damage(lambda: decode_document(store.get(key).data, where=key))
    except ObjectNotFound:
        return None


def _cold(shop: Workshop, path: Path) -> Repair:
    places = shop.access.locations
    if places.cold_url is None:
        raise ConfigError(
            "name the bucket by --cold or in the settings; it is checked against the store's id"
        )
    if shop.store_id is None or StoreDocuments(shop.access.object_store).read_store_id() != shop.store_id:
        raise ConfigError(f"{places.cold_url} does not bear this store's id")
    kept = copy_aside(shop.fs, path)
    options = places.cold_options
    write_binding(
        shop.fs,
        path.parent,
        BucketBinding(places.cold_url, options.endpoint_url, options.region, claimed=True),
    )
    return Repair(str(path), f"wrote {places.cold_url}, which bears this store's id", "done", kept=kept)


def _topic(shop: Workshop, path: Path) -> Repair:
    """Take the bucket's copy, if it is of the topic and knows every schema that segments here have."""
    if not shop.access.has_cold:
        raise CorruptionError("the columns that are key and timestamp stand nowhere else")
    meta = find_bucket_topic(shop.access.object_store, path.parent.name, Notes())
    if meta is None:
        raise CorruptionError("the bucket has no sound copy of it")
    partitions = _partitions(path.parent)
    for look in (look for partition in partitions for look in _headers(partition)):
        header = look.header
        assert header is not None
        if header.topic_id != meta.topic_id or header.schema_id >= len(meta.schemas):
            raise CorruptionError(
                f"{look.path} is of another topic, or of a schema that the bucket does not know"
            )
    kept = copy_aside(shop.fs, path)
    grown = [int(item.name) + 1 for item in partitions if item.name.isdigit()]
    meta = replace(meta, partitions=max([meta.partitions, *grown]))
    write_atomically(shop.fs, path, encode_document(meta.to_json()))
    return Repair(str(path), "took the copy from the bucket", "done", kept=kept)


def _start(shop: Workshop, path: Path, facts: Evidence) -> Repair:
    """Take the highest start offset that anything else bears; what was removed since may reappear."""
    if facts.entries is None:
        raise CorruptionError("the bucket, which may know the start offset, did not say what it has")
    sealed = [look.footer.facts.start_offset for look in facts.segments or () if look.footer is not None]
    start = max([0, *sealed, facts.head.start_offset if facts.head is not None else 0])
    bases = [look.name.base_offset for look in (facts.segments or ())[:1]]
    bases += [entry.base_offset for entry in facts.entries[:1]]
    if facts.entries_whole:  # else the log may begin on a page that is damaged too
        start = max(start, min(bases, default=0))
    kept = copy_aside(shop.fs, path)
    write_start_offset(shop.fs, path.parent, start)
    why = "records that retention or delete_before removed since that was last written may reappear"
    return Repair(str(path), f"wrote the start offset {start}", "done", why, kept)


def _lineage(shop: Workshop, path: Path, facts: Evidence) -> Repair:
    if facts.lineage is not None:
        raise CorruptionError("it is sound: the bucket went on in another lineage, or lost its own")
    if facts.head is None or len(facts.head.lineages) != 1:
        raise CorruptionError("to which lineage of the bucket this disk belongs stands nowhere else")
    kept = copy_aside(shop.fs, path)
    write_lineage(shop.fs, path.parent, facts.head.lineage_epoch)
    return Repair(
        str(path), f"wrote lineage {facts.head.lineage_epoch}, the only one there is", "done", kept=kept
    )


def repair_bucket_document(shop: Workshop, key: str, topics: list[TopicMeta]) -> Repair:
    """Write ``store.json`` or a ``topic.json`` of the bucket anew from the local one.

    Raises
    ------
    CorruptionError
        Another store, or a restore of this one, may own the prefix; or what it says now is sound.
    ColdStorageError
    """
    root = shop.access.locations.root
    if root is None or shop.store_id is None:
        raise CorruptionError("only the local store knows what it said")
    store = shop.access.object_store
    where = f"{store.url.rstrip('/')}/{key}"
    lineage = Catalog(shop.fs, root).lineage()
    values: dict[str, Any] | None = None
    if key == STORE_KEY:
        values = {"id": str(shop.store_id)}
        others = [topic_key(meta.name, meta.topic_id) for meta in topics]
    else:
        meta = next((meta for meta in topics if topic_key(meta.name, meta.topic_id) == key), None)
        values = meta.to_json() if meta is not None else None
        others = [STORE_KEY]
    if values is None:
        raise CorruptionError("no topic here is the one that it is of")
    for other in others:
        known, of = _lineages_in_bucket(store, other)
        if known > lineage != of:
            raise CorruptionError("the store was restored elsewhere, so this disk does not own the prefix")
        if of == lineage:
            lineage = known  # of the documents, since a restore was given up
    if lineage > 1:
        values[LINEAGE] = lineage
    etag, kept = None, ""
    try:
        damaged = store.get(key)
    except ObjectNotFound:
        pass
    else:
        _check_damaged(damaged.data, where, str(values.get("name", "")))
        etag = damaged.etag
        name = f"{DAMAGED_FOLDER}/{uuid4()}-{key.replace('/', '-')}"
        store.put(name, damaged.data, if_none_match=True)
        kept = f"{store.url.rstrip('/')}/{name}"
    data = encode_document(values)
    try:
        store.put(key, data, if_match=etag, if_none_match=etag is None)
    except ColdStorageError as error:
        # An answer that was lost, or that of a repetition, says nothing: what is there now does.
        if not (error.retryable or isinstance(error, PreconditionFailed)) or store.get(key).data != data:
            raise
    return Repair(where, "wrote what the local store has", "done", kept=kept)


def _check_damaged(data: bytes, where: str, topic: str) -> None:
    """Refuse to overwrite a document that verifies: a tombstone, or that of another store."""
    try:
        found = decode_document(data, where=where)
    except CorruptionError:
        return
    if DELETED in found:
        raise CorruptionError(f"it is sound: {DELETED_IN_BUCKET}; {DELETE_AGAIN.format(name=topic)}")
    raise CorruptionError("it is sound, and says otherwise than the local store")


def _lineages_in_bucket(store: ObjectStore, key: str) -> tuple[int, int | None]:
    """Return the lineage that a document bears, and that of the store which went on after a restore was given up."""
    try:
        values = _bucket_values(store, key)
    except CorruptionError:
        return 1, None  # damaged too: it says nothing
    lineage = int(values.get(LINEAGE, 1)) if values is not None else 1
    intent = intent_of(values, lineage) if values is not None else None
    return lineage, intent.of if intent is not None and not intent.under_way else None
