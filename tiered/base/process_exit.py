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

    _is_served_elsewhere: bool

    def close(self) -> None: ...

    def _abandon(self) -> None: ...


open_stores: weakref.WeakSet[OpenStore] = weakref.WeakSet()


def _abandon_all() -> None:
    for store in list(open_stores):
        store._abandon()


def _close_all() -> None:
    # First those that need another one of this process to be open: what is served from here.
    for store in sorted(open_stores, key=lambda store: store._is_served_elsewhere, reverse=True):
        try:
            store.close()
        except Exception:
            # Whatever it is, the stores after it must be closed.
            log.exception("%r could not be closed at exit: what was not flushed yet is lost", store)


os.register_at_fork(after_in_child=_abandon_all)
atexit.register(_close_all)
