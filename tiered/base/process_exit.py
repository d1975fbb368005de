"""The open stores of this process: closed at its exit, abandoned in a forked child."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Protocol

log = logging.getLogger("tiered.store")


class OpenStore(Protocol):
    """The part of a store that exit and fork call."""

    def close(self) -> None: ...

    def abandon(self) -> None: ...


_open: weakref.WeakKeyDictionary[OpenStore, bool] = weakref.WeakKeyDictionary()


def register(store: OpenStore, *, closes_first: bool = False) -> None:
    """Close a store at exit; with `closes_first` before the others, because it may need one of them."""
    _open[store] = closes_first


def unregister(store: OpenStore) -> None:
    """Remove a store that is closed."""
    _open.pop(store, None)


def _abandon_all() -> None:
    for store in list(_open):
        store.abandon()


def _close_all() -> None:
    for store, _ in sorted(_open.items(), key=lambda item: not item[1]):
        try:
            store.close()
        except Exception:
            # After any error the other stores must still be closed.
            log.exception("%r could not be closed at exit: records that were not flushed are lost", store)


os.register_at_fork(after_in_child=_abandon_all)
atexit.register(_close_all)
