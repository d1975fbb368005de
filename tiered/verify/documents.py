"""Checks of the small documents: each decodes, and those on disk and in the bucket agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from ..cold.manifest.erasures import read_ledger
from ..cold.manifest.keys import STORE_KEY, topic_key
from ..cold.manifest.store_documents import DELETE_AGAIN, DELETED, DELETED_IN_BUCKET, StoreDocuments
from ..cold.object_store.protocol import object_url
from ..errors import CorruptionError
from ..format.erasure import LEDGER_FILE
from ..format.topic_meta import TopicMeta
from ..warm.bucket_binding import COLD_FILE, read_binding
from ..warm.catalog import STORE_FILE, TOPIC_FILE, TOPICS_DIRECTORY, deletions
from ..warm.document_file import read_document
from ..warm.erasure_ledger import ErasureLedger
from ..warm.filesystem import OsFileSystem
from .findings import Findings
from .report import Item, Problem


def check_store_document(root: Path, findings: Findings) -> UUID | None:
    """Check ``store.json`` and ``cold.json`` of a local store; return the store's id."""
    path = root / STORE_FILE
    store_id = None
    with findings.guard(Item.DOCUMENT, str(path), position=0):
        try:
            store_id = _id(read_document(path))
        except FileNotFoundError:
            findings.add_problem(Problem(Item.DOCUMENT, str(path), "is missing", position=0))
    cold = root / COLD_FILE
    with findings.guard(Item.DOCUMENT, str(cold), position=0):
        read_binding(root)
    return store_id


def check_bucket_document(
    bucket: StoreDocuments, store_id: UUID | None, published: bool, findings: Findings
) -> UUID | None:
    """Check ``store.json`` of the bucket, which must exist if anything is `published`; return its id."""
    where = f"{bucket.store.url.rstrip('/')}/{STORE_KEY}"
    owner = None
    with findings.guard(Item.DOCUMENT, where, position=0):
        owner = bucket.read_store_id()
        if owner is None and published:
            findings.add_problem(Problem(Item.DOCUMENT, where, "is missing", position=0))
        if owner is not None and store_id is not None and owner != store_id:
            findings.add_problem(
                Problem(Item.DOCUMENT, where, f"belongs to store {owner}, this is {store_id}", position=0)
            )
    return owner


def local_topic_names(root: Path, findings: Findings) -> list[str]:
    """Return the names of all topics that have a document or a segment."""
    directory = root / TOPICS_DIRECTORY
    try:
        names = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        findings.add_unknown(str(directory), f"cannot be listed ({error})")
        return []
    # An interrupted creation leaves empty directories, which are no topics.
    return [
        name for name in names
        if (directory / name / TOPIC_FILE).exists() or any((directory / name).glob("*/*.log"))
    ]  # fmt: skip


def check_topic_document(root: Path, name: str, findings: Findings) -> TopicMeta | None:
    """Check a local ``topic.json`` and return it; None if it is damaged."""
    path = root / TOPICS_DIRECTORY / name / TOPIC_FILE
    with findings.guard(Item.DOCUMENT, str(path), position=0):
        try:
            values = read_document(path)
        except FileNotFoundError:
            raise CorruptionError("is missing beside segments", where=str(path)) from None
        meta = TopicMeta.from_json(values, where=str(path))
        if meta.name != name:
            raise CorruptionError(f"is of topic {meta.name!r}", where=str(path))
        for partition in range(meta.partitions):
            directory = path.parent / str(partition)
            if not directory.is_dir():
                findings.add_problem(
                    Problem(Item.LOG, str(directory), "the partition's directory is missing")
                )
        return meta
    return None


def check_deletions(root: Path, findings: Findings) -> set[UUID]:
    """Report unfinished deletions; return the ids of their topics, which may still be in the bucket."""
    ids = set()
    for deletion in deletions(root):
        with findings.guard(Item.DOCUMENT, str(deletion.directory / TOPIC_FILE), position=0):
            if not isinstance(deletion.meta, TopicMeta):
                raise deletion.meta
            ids.add(deletion.meta.topic_id)
            reason = f"the deletion of topic {deletion.name!r} is not finished; the next pass goes on (tiered tier)"
            findings.add_unknown(str(deletion.directory), reason)
    return ids


def check_bucket_topic(bucket: StoreDocuments, meta: TopicMeta, published: bool, findings: Findings) -> None:
    """Compare a topic's document in the bucket with the local one; the one in the bucket may be older."""
    where = f"{bucket.store.url.rstrip('/')}/{topic_key(meta.name, meta.topic_id)}"
    with findings.guard(Item.DOCUMENT, where, position=0):
        document = bucket.read_topic(meta.name, meta.topic_id)
        if document is None:
            if published:
                findings.add_problem(Problem(Item.DOCUMENT, where, "is missing beside objects", position=0))
            return
        if DELETED in document:
            advice = DELETE_AGAIN.format(name=meta.name)
            findings.add_problem(Problem(Item.DOCUMENT, where, DELETED_IN_BUCKET, position=0, advice=advice))
            return
        other = TopicMeta.from_json(document, where=where)
        short = min(len(other.schemas), len(meta.schemas))
        same = all(a.equals(b) for a, b in zip(other.schemas[:short], meta.schemas[:short], strict=True))
        if not same or (other.timestamp, other.key) != (meta.timestamp, meta.key):
            findings.add_problem(
                Problem(Item.DOCUMENT, where, "differs from the local topic.json", position=0)
            )


def check_ledgers(root: Path | None, bucket: StoreDocuments | None, findings: Findings) -> None:
    """Check the ledger of erasures on the disk and in the bucket. A store without erasures has none."""
    if root is not None:
        with findings.guard(Item.DOCUMENT, str(root / LEDGER_FILE), position=0):
            ErasureLedger(OsFileSystem(), root).read()
    if bucket is not None:
        with findings.guard(Item.DOCUMENT, object_url(bucket.store, LEDGER_FILE), position=0):
            read_ledger(bucket)


def _id(values: dict[str, Any]) -> UUID:
    try:
        return UUID(values["id"])
    except (KeyError, ValueError, TypeError, AttributeError):
        raise CorruptionError("store.json has no id") from None
