"""The copy of the ledger of erasures in a bucket; see `format.erasure`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from ...errors import CorruptionError, ObjectNotFound
from ...format.erasure import (
    LEDGER_FILE,
    VALUES_BYTES_MAX,
    VALUES_FOLDER,
    LedgerEntry,
    ledger_from_json,
    ledger_to_json,
    merge_ledgers,
)
from ..object_store.protocol import KeepsVersions, ObjectInfo, ObjectStore, OldVersion, object_url
from .store_documents import StoreDocuments, with_lineage


def exchange_ledger(
    documents: StoreDocuments, ours: Sequence[LedgerEntry], lineage: int
) -> tuple[LedgerEntry, ...]:
    """Bring the ledger in the bucket up to `ours`, by compare-and-swap; return both together.

    The values of the open erasures in `ours` must be in the bucket. Neither copy loses an erasure, so a stalled process does
    no harm. The erasures that the bucket has already keep their numbers.

    Raises
    ------
    Fenced
        The ledger is of a later lineage than the caller's documents: a restore has set the horizons for what it lacks.
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    return _update(documents, lambda known: merge_ledgers(ours, known), lineage)


def adopt_ledger(
    documents: StoreDocuments, change: Callable[[LedgerEntry], LedgerEntry], lineage: int
) -> tuple[LedgerEntry, ...]:
    """Take the ledger over in a new lineage, change each erasure, and return all.

    Raises
    ------
    Fenced, CorruptionError, UnsupportedFormat, ColdStorageError
    """
    return _update(documents, lambda known: tuple(map(change, known)), lineage, adopt=True)


def _update(
    documents: StoreDocuments,
    changed: Callable[[tuple[LedgerEntry, ...]], tuple[LedgerEntry, ...]],
    lineage: int,
    *,
    adopt: bool = False,
) -> tuple[LedgerEntry, ...]:
    ledger: tuple[LedgerEntry, ...] = ()

    def change(current: dict[str, Any] | None) -> dict[str, Any]:
        nonlocal ledger
        values = current or {}
        documents.check_lineage(LEDGER_FILE, values, lineage)
        where = object_url(documents.store, LEDGER_FILE)
        ledger = changed(() if current is None else ledger_from_json(current, where=where))
        values = {**values, **ledger_to_json(ledger)}
        return with_lineage(values, lineage) if adopt else values

    documents.update(LEDGER_FILE, change)
    return ledger


def read_ledger(documents: StoreDocuments) -> tuple[LedgerEntry, ...]:
    """Return the ledger in the bucket.

    Raises
    ------
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    values = documents.read(LEDGER_FILE)
    return () if values is None else ledger_from_json(values, where=object_url(documents.store, LEDGER_FILE))


def stored_values(store: ObjectStore) -> dict[str, float]:
    """Return the names of all stored values, and when each was stored (Unix, the server's clock).

    Raises
    ------
    ColdStorageError
    """
    return {info.key: info.modified_seconds for info in store.list(VALUES_FOLDER)}


def put_values(store: ObjectStore, erasure: LedgerEntry, data: bytes) -> None:
    """Store the values of an erasure; a repeat writes the same bytes.

    Raises
    ------
    ColdStorageError
    """
    store.put(erasure.values_name, data)


def get_values(store: ObjectStore, erasure: LedgerEntry) -> bytes:
    """Return the stored values of an open erasure; `format.erasure.decode_values` checks them.

    Raises
    ------
    CorruptionError
        They are missing, or too large to be values.
    ColdStorageError
    """
    where = object_url(store, erasure.values_name)
    try:
        size = store.stat(erasure.values_name).size
        if size > 2 * VALUES_BYTES_MAX:
            raise CorruptionError(f"values of an erasure take {size} bytes", where=where)
        return store.get(erasure.values_name).data
    except ObjectNotFound:
        raise CorruptionError("the values of an open erasure are missing", where=where) from None


def lost_values(documents: StoreDocuments) -> list[ObjectInfo | OldVersion]:
    """Return stored values, and old versions of some, that no open erasure in the ledger has.

    They are of a call that was lost with its disk, or of a process that died before it deleted them. Recent ones may be of a
    call whose ledger is not in the bucket yet.

    Raises
    ------
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    store = documents.store
    # Listed first: the ledger comes after the values.
    objects: list[ObjectInfo | OldVersion] = list(store.list(VALUES_FOLDER))
    if isinstance(store, KeepsVersions):
        objects += store.old_versions(VALUES_FOLDER)
    named = {item.values_name for item in read_ledger(documents) if item.is_open} if objects else set()
    return [info for info in objects if info.key not in named]


def sweep_lost_values(documents: StoreDocuments, before_seconds: float) -> None:
    """Delete `lost_values` that were stored before a time (Unix, the server's clock), and old versions of them.

    Raises
    ------
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    store = documents.store
    lost = [info for info in lost_values(documents) if info.modified_seconds < before_seconds]
    doomed = [info.key for info in lost if isinstance(info, ObjectInfo)]
    if doomed:
        store.delete(doomed)
    if lost:
        _delete_versions(store, {info.key for info in lost})


def drop_values(store: ObjectStore, ledger: Sequence[LedgerEntry]) -> None:
    """Delete the values of erasures that have ended, and old versions of them.

    Raises
    ------
    ColdStorageError
    """
    ended = {item.values_name for item in ledger if not item.is_open}
    doomed = stored_values(store).keys() & ended
    if doomed:
        store.delete(sorted(doomed))
    _delete_versions(store, ended)


def _delete_versions(store: ObjectStore, keys: Collection[str]) -> None:
    if isinstance(store, KeepsVersions):
        versions = [item for item in store.old_versions(VALUES_FOLDER) if item.key in keys]
        if versions:
            store.delete_versions(versions)
