"""The open stores of this process: closed at its exit, and let go of in a child that it forks."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Protocol

log = logging.getLogger("tiered.store")


class OpenStore(Protocol):
    """What the end of a process, and a fork, need of a store."""

    def close(self) -> None: ...

    def abandon(self) -> None: ...


_open: weakref.WeakKeyDictionary[OpenStore, bool] = weakref.WeakKeyDictionary()


def register(store: OpenStore, *, closes_first: bool = False) -> None:
    """Close a store as the process ends; `closes_first` where it may need another one of this process to be open."""
    _open[store] = closes_first


def unregister(store: OpenStore) -> None:
    """Leave a store alone, as it is closed."""
    _open.pop(store, None)


def _abandon_all() -> None:
    for store in list(_open):
        store.abandon()


def _close_all() -> None:
    for store, _ in sorted(_open.items(), key=lambda item: not item[1]):
        try:
            store.close()
        except Exception:
            # Whatever it is, the stores after it must be closed.
            log.exception("%r could not be closed at exit: what was not flushed yet is lost", store)


os.register_at_fork(after_in_child=_abandon_all)
atexit.register(_close_all)
