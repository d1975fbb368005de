"""Leases on snapshots that Spark reads by itself, held as long as a plan in Spark uses them."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from ...base.caller import this_process
from ...base.ticker import Ticker
from ...cold.manifest.erasures import read_ledger
from ...cold.manifest.leases import Lease
from ...cold.manifest.store_documents import StoreDocuments
from ...cold.object_store.protocol import ObjectStore
from ...errors import ColdStorageError
from ...format.erasure import LedgerEntry
from ...reader.tiers import Tiers

LEASE_SECONDS = 3600.0

_CHECK_SECONDS = 60.0
# A lease is renewed when less than this share of its time is left, so that several tries fit in.
_RENEW_SHARE = 2 / 3

_log = logging.getLogger("tiered.spark.table_leases")


@dataclass(frozen=True, slots=True)
class BucketLease:
    """A lease and the bucket that it is in."""

    lease: Lease
    bucket: ObjectStore

    def erasures(self, topic_id: UUID) -> Callable[[], list[LedgerEntry]]:
        """Return a function that returns the erasures since which objects of a topic are not named any more, though they are leased."""

        def replaced() -> list[LedgerEntry]:
            since_us = (self.lease.taken_seconds or 0) * 1e6
            ledger = read_ledger(StoreDocuments(self.bucket))
            return [x for x in ledger if x.topic_id == topic_id and (x.rewritten_us or 0) >= since_us]

        return replaced

    def release(self) -> None:
        """Release the lease, and close the bucket."""
        try:
            _release(self.lease)
        finally:
            self.bucket.close()


def _release(lease: Lease) -> None:
    try:
        lease.release()
    except ColdStorageError as error:
        _log.info("a lease was not released, and ends by itself: %s", error)


def take_lease(url: str, tiers: Tiers) -> BucketLease | None:
    """Take a lease on the present objects of the bucket at `url`; None, and a warning, if the bucket refuses writes."""
    bucket = tiers.connect(tiers.locations.cold_options)
    try:
        holder = f"tiered.spark.table on {this_process()}"
        return BucketLease(Lease.take(bucket, seconds=LEASE_SECONDS, holder=holder), bucket)
    except ColdStorageError as error:
        bucket.close()
        _log.warning("no lease on the objects of %s, so they stay for sweep.grace only: %s", url, error)
        return None


@dataclass(frozen=True, slots=True)
class _Entry:
    lease: Lease | None
    seconds: float
    in_use: Callable[[], bool]
    close: Callable[[], None]
    erasures: Callable[[], Sequence[LedgerEntry]]
    # Those that were said.
    known: set[UUID] = field(default_factory=set)

    def name_erasures(self) -> None:
        """Log each erasure that lets objects go in spite of the lease."""
        for erasure in self.erasures():
            if erasure.id not in self.known:
                self.known.add(erasure.id)
                _log.warning(
                    "erasure %d removes records of topic %s: objects that a table of this session reads go, at the latest after "
                    "erase.lease_max; call table() again, or its queries fail with files that do not exist",
                    erasure.number,
                    erasure.topic,
                )


class LeaseKeeper:
    """Renews leases while they are in use, and releases them after that. Thread-safe."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._lock = threading.Lock()
        self._process = os.getpid()

    def add(
        self,
        lease: Lease | None,
        seconds: float,
        in_use: Callable[[], bool],
        close: Callable[[], None],
        erasures: Callable[[], Sequence[LedgerEntry]] = tuple,
    ) -> None:
        """Add a lease, or a resource without one.

        Parameters
        ----------
        lease
            None: there is no lease to renew, and `close` alone runs at the end.
        seconds
            The duration of the lease.
        in_use
            Tells whether something can still read the snapshot; called at each `check`.
        close
            Called when nothing uses the snapshot any more, after the release of the lease.
        erasures
            Returns the erasures that let objects go in spite of the lease; called when it is renewed.
        """
        with self._lock:
            self._entries.append(_Entry(lease, seconds, in_use, close, erasures))

    def check(self) -> None:
        """Renew the leases that are due, and release those that nothing uses."""
        if self._is_forked():
            return
        with self._lock:
            for entry in list(self._entries):
                try:
                    self._check(entry)
                except Exception as error:  # noqa: BLE001 (the entries after it must be renewed in any case)
                    _log.warning("a lease was not renewed, and is tried again: %s", error)

    def _check(self, entry: _Entry) -> None:
        if not entry.in_use():
            self._remove(entry)
        elif entry.lease is None:
            return
        elif entry.lease.left_seconds <= 0:
            _log.warning(
                "the lease on objects that a table of this session reads has ended; call table() again"
            )
            self._remove(entry)
        elif entry.lease.left_seconds < entry.seconds * _RENEW_SHARE:
            entry.lease.renew()
            entry.name_erasures()

    def _is_forked(self) -> bool:
        """Whether this is a forked child. Its leases belong to the parent, which goes on."""
        return os.getpid() != self._process

    def release_all(self) -> None:
        """Release all leases, at the end of the process."""
        if self._is_forked():
            return
        with self._lock:
            for entry in list(self._entries):
                self._remove(entry)

    def __len__(self) -> int:
        return len(self._entries)

    def _remove(self, entry: _Entry) -> None:
        self._entries.remove(entry)
        try:
            if entry.lease is not None:
                _release(entry.lease)
        finally:
            entry.close()


_keeper: LeaseKeeper | None = None
_keeper_lock = threading.Lock()


def lease_keeper() -> LeaseKeeper:
    """Return this process's keeper; the first call starts its thread."""
    global _keeper
    with _keeper_lock:
        if _keeper is None:
            _keeper = LeaseKeeper()
            Ticker("tiered-leases", _CHECK_SECONDS, _keeper.check).start()
            atexit.register(_keeper.release_all)
        return _keeper
