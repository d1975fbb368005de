"""How an open store ends: closed, or left to the parent by a forked child."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.process_exit import open_stores
from ..errors import ColdStorageError, TieredError

if TYPE_CHECKING:
    from .local_store import Store


def close(store: Store) -> None:
    """Publish and flush what was appended, end what runs, let go of the locks; see `Store.close`."""
    lifecycle, topics = store.lifecycle, store.open_topics
    if lifecycle.ended:
        return
    if store.passes is not None:
        store.passes.stop()
    error: Exception | None = _published(store)
    topics.begin_closing()
    for writer in topics.writers():
        try:
            writer.close()
        except Exception as failed:  # noqa: BLE001
            # Whatever it is, the partitions after it must reach the disk.
            error = error or failed
    if error is not None and any(writer.fault is None for writer in topics.writers()):
        lifecycle.reopen()
        if store.passes is not None:
            store.passes.start()
        raise error
    lifecycle.stopping.set()
    if store.web is not None:
        store.web.close()
    for server in store.servers:
        server.close()
    for ticker in store.tickers:
        ticker.stop()
    lifecycle.end()
    open_stores.discard(store)
    store.context.tiers.close()
    if store.writer_lock is not None:
        store.writer_lock.release()
    if error is not None:
        raise error


def _published(store: Store) -> TieredError | None:
    """With ``sync="cold"``: publish what appends did not wait for; return what stood in the way."""
    error: TieredError | None = None
    if store.context.settings.store.sync == "cold":
        for topic in store.open_topics.open_now():
            for partition, writer in list(topic.writers.items()):
                try:
                    if writer.fault is None:  # else it was said before
                        topic.wait_safe(partition, writer.end_offset, None)
                except TieredError as failed:
                    error = error or failed
                except RuntimeError as failed:
                    # At exit no thread can be started any more, for the parts of a large object, say.
                    error = error or ColdStorageError(f"not published at exit: {failed}", retryable=True)
    return error


def abandon(store: Store) -> None:
    """In a forked child: leave a store to the parent."""
    fault = store.lifecycle.abandon()
    store.open_topics.abandon()
    for writer in store.open_topics.writers():
        writer.abandon(fault)
    if store.writer_lock is not None:
        store.writer_lock.abandon()
    store.tierer.abandon()
    if store.web is not None:
        store.web.abandon()
    for server in store.servers:
        server.abandon()
