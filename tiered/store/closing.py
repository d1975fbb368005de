"""How an open store ends: closed, or left to the parent by a forked child."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..base.process_exit import open_stores
from ..engine.writers import wait_for_openings
from ..errors import ColdStorageError, StoreClosed, TieredError

if TYPE_CHECKING:
    from .local_store import Store


def close(store: Store) -> None:
    """Publish and flush what was appended, end what runs, let go of the locks; see `Store.close`."""
    if store._fault is not None:
        return
    if store._passes is not None:
        store._passes.stop()
    error: Exception | None = _published(store)
    with store._lock:
        # Or a writer that another thread opens meanwhile would stay open, and never be flushed again.
        store._opens_writers = False
    wait_for_openings(store)
    for writer in store._writers():
        try:
            writer.close()
        except Exception as failed:  # noqa: BLE001
            # Whatever it is, the partitions after it must reach the disk.
            error = error or failed
    if error is not None and any(writer.fault is None for writer in store._writers()):
        store._opens_writers = True
        if store._passes is not None:
            store._passes.start()
        raise error
    store._stopping.set()
    if store._web is not None:
        store._web.close()
    for server in store._servers:
        server.close()
    for ticker in store._tickers:
        ticker.stop()
    store._fault = StoreClosed(f"the store {store.url} is closed")
    open_stores.discard(store)
    store._access.close()
    if store._writer_lock is not None:
        store._writer_lock.release()
    if error is not None:
        raise error


def _published(store: Store) -> TieredError | None:
    """With ``sync="cold"``: publish what appends did not wait for; return what stood in the way."""
    error: TieredError | None = None
    if store._settings.store.sync == "cold":
        with store._lock:
            topics = list(store._topics.values())
        for topic in topics:
            for partition, writer in list(topic._writers.items()):
                try:
                    if writer.fault is None:  # else it was said before
                        topic._wait_safe(partition, writer.end_offset, None)
                except TieredError as failed:
                    error = error or failed
                except RuntimeError as failed:
                    # At exit no thread can be started any more, for the parts of a large object, say.
                    error = error or ColdStorageError(f"not published at exit: {failed}", retryable=True)
    return error


def abandon(store: Store) -> None:
    """In a forked child: leave a store to the parent."""
    store._fault = StoreClosed(
        f"the store {store.url} was opened before this process was forked; open it here again, read_only=True "
        "beside the parent's writer"
    )
    store._lock = threading.RLock()
    for topic in store._topics.values():
        topic._lock = threading.RLock()
        for writer in list(topic._writers.values()):
            writer.abandon(store._fault)
    if store._writer_lock is not None:
        store._writer_lock.abandon()
    store._tierer.abandon()
    if store._web is not None:
        store._web.abandon()
    for server in store._servers:
        server.abandon()
