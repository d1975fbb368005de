"""The transaction log after restores to a time, as its head in the bucket shows it.

Such a restore moves the heads of the bucket back one after another, that of the log first (`recovery.restore`). Until all are moved,
partitions may lack rows of a transaction that others have, and the log does not say so.
"""

from __future__ import annotations

from ..cold.manifest.restore_intent import Intent
from ..cold.manifest.store_documents import StoreDocuments
from ..cold.object_store.protocol import ObjectStore
from ..errors import RestoreUnderWay
from ..format.manifest import Head
from ..warm.catalog import TransactionsCut

Lineage = tuple[int, bool]
"""The epoch of a log's newest lineage, and whether a restore to a time has moved the log's head back in it, which comes later."""

UNKNOWN: Lineage = (0, False)


def lineage_in(head: Head | None) -> Lineage:
    """Return the lineage of the log whose head this is."""
    return UNKNOWN if head is None else (head.lineage_epoch, head.lineage_epoch in dict(head.cuts))


def cuts_of(head: Head) -> tuple[TransactionsCut, ...]:
    """Return the cuts of the log by the restores from which its newest lineage descends."""
    origins, times = {origin.epoch: origin for origin in head.origins}, dict(head.cuts)
    cuts, epoch, end = [], head.lineage_epoch, head.end_offset
    while epoch in origins:
        end = min(end, origins[epoch].end_offset)
        if epoch in times:
            cuts.append(TransactionsCut(times[epoch], end))
        epoch = origins[epoch].parent
    return tuple(cuts)


def unfinished_restore(store: ObjectStore, head: Head) -> Intent | None:
    """Return the intent of a restore to a time if such a one has moved the head of the log, and maybe not all others.

    Sends no request unless a restore to a time made the last change of the log's head.

    Raises
    ------
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    if lineage_in(head) != (head.epoch, True):
        return None
    intent, moved_us = StoreDocuments(store).read_intent(), dict(head.rewinds)[head.epoch]
    return None if intent is None or moved_us < intent.since_us else intent


def check_all_moved(store: ObjectStore, head: Head) -> None:
    """Raise if a restore to a time has moved the head of the log and maybe not all others; see `unfinished_restore`.

    Raises
    ------
    RestoreUnderWay
    CorruptionError, UnsupportedFormat, ColdStorageError
    """
    intent = unfinished_restore(store, head)
    if intent is None:
        return
    if intent.under_way:
        raise RestoreUnderWay(
            f"{store.url} is being restored to an earlier time by {intent.holder}: several partitions are readable together once "
            "that is done. If it was cut short, repeat it"
        )
    raise RestoreUnderWay(
        f"a restore of {store.url} to an earlier time was cut short, and some partitions are at that time while others are not: "
        "repeat it. Until then each partition is readable alone",
        retryable=False,
    )
