"""Leases on snapshots that Spark reads by itself, held for as long as some plan in Spark uses them."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ...base.ticker import Ticker
from ...cold.manifest.leases import Lease
from ...cold.object_store.protocol import ObjectStore
from ...errors import ColdStorageError
from ...reader.tiers import Tiers

LEASE_SECONDS = 3600.0

_TEND_SECONDS = 60.0
# Renewed when less than this share of it is left: several tries before it ends.
_RENEW_SHARE = 2 / 3

_log = logging.getLogger("tiered.spark.table_leases")


@dataclass(frozen=True, slots=True)
class Leased:
    """A lease and the bucket it is in."""

    lease: Lease
    bucket: ObjectStore

    def let_go(self) -> None:
        """Release it."""
        try:
            self.lease.release()
        except ColdStorageError as error:
            _log.info("a lease was not released, and ends by itself: %s", error)
        finally:
            self.bucket.close()


def take_lease(url: str, access: Tiers) -> Leased | None:
    """Take a lease on what the bucket at `url` has now; None, and a warning, where nothing can be written there."""
    bucket = access.connect(access.locations.cold_options)
    try:
        holder = f"tiered.spark.table on {socket.gethostname()}, process {os.getpid()}"
        return Leased(Lease.take(bucket, seconds=LEASE_SECONDS, holder=holder), bucket)
    except ColdStorageError as error:
        bucket.close()
        _log.warning("no lease on the objects of %s, so they stay for sweep.grace only: %s", url, error)
        return None


@dataclass(frozen=True, slots=True)
class _Held:
    lease: Lease | None
    seconds: float
    in_use: Callable[[], bool]
    close: Callable[[], None]


class LeaseKeeper:
    """Renews leases while they are in use, and releases them after that. Thread-safe."""

    def __init__(self) -> None:
        self._held: list[_Held] = []
        self._lock = threading.Lock()
        self._process = os.getpid()

    def hold(
        self, lease: Lease | None, seconds: float, in_use: Callable[[], bool], close: Callable[[], None]
    ) -> None:
        """Keep a lease, or what is only to be let go of at the end.

        Parameters
        ----------
        lease
            None: there is none to renew.
        seconds
            What it was taken for.
        in_use
            Whether its snapshot can still be read; asked at each `tend`.
        close
            Called once nothing uses it any more.
        """
        with self._lock:
            self._held.append(_Held(lease, seconds, in_use, close))

    def tend(self) -> None:
        """Renew what is due, release what is not in use."""
        if self._is_of_parent():
            return
        with self._lock:
            for held in list(self._held):
                try:
                    self._tend(held)
                except Exception as error:  # noqa: BLE001 (those after it have to be renewed, whatever it is)
                    _log.warning("a lease was not renewed, and is tried again: %s", error)

    def _tend(self, held: _Held) -> None:
        if not held.in_use():
            self._let_go(held)
        elif held.lease is None:
            return
        elif held.lease.left_seconds <= 0:
            _log.warning(
                "the lease on objects that a table of this session reads has ended; call table() again"
            )
            self._let_go(held)
        elif held.lease.left_seconds < held.seconds * _RENEW_SHARE:
            held.lease.renew()

    def _is_of_parent(self) -> bool:
        """Whether this is a forked child, which ends before what its parent holds does."""
        return os.getpid() != self._process

    def release_all(self) -> None:
        """Let go of every lease: the process ends."""
        if self._is_of_parent():
            return
        with self._lock:
            for held in list(self._held):
                self._let_go(held)

    def __len__(self) -> int:
        return len(self._held)

    def _let_go(self, held: _Held) -> None:
        self._held.remove(held)
        try:
            if held.lease is not None:
                held.lease.release()
        except ColdStorageError as error:
            _log.info("a lease was not released, and ends by itself: %s", error)
        finally:
            held.close()


_keeper: LeaseKeeper | None = None
_keeper_lock = threading.Lock()


def lease_keeper() -> LeaseKeeper:
    """Return this process's keeper; the first call starts its thread."""
    global _keeper
    with _keeper_lock:
        if _keeper is None:
            _keeper = LeaseKeeper()
            Ticker("tiered-leases", _TEND_SECONDS, _keeper.tend).start()
            atexit.register(_keeper.release_all)
        return _keeper
