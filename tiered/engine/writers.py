"""The partition writers of a store: opened by its settings, and flushed in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..base.units import to_us
from ..errors import ConfigError, StoreClosed, TieredError, TopicNotFound
from ..format.manifest import Head
from ..format.producers import producer_number
from ..format.topic_meta import TopicMeta
from ..hot.partition_writer import LOCK_WAIT_SECONDS, PartitionWriter
from ..hot.recovery import WriterOptions
from ..hot.writer_requests import do_what_is_asked
from ..warm.open_commits import decision_producer, open_decisions

if TYPE_CHECKING:
    from ..store.local_store import Store
    from ..store.local_topic import Topic

_POLL_SECONDS = 0.01


def open_writer(topic: Topic, partition: int) -> PartitionWriter:
    """Return the writer of a partition; open it where that was not done yet.

    The bucket is asked, and the disk after it, under no lock but the turn of this one partition: a close and a deletion
    wait for what is done on the disk, and for nothing of the bucket. All other partitions go on.

    Raises
    ------
    TopicNotFound, StoreClosed, ConfigError, ReadOnly, StoreLocked, Fenced, CorruptionError, DiskFull
    """
    store = topic._store
    _check_may_open(topic)
    with store._partitions.of((topic._meta.topic_id, partition)):
        found = topic._writers.get(partition)
        if found is not None:
            return found
        _check_may_open(topic)
        _check_can_publish(store, topic.name)
        head = store._tierer.claims.head_before_appending(topic._meta, partition)
        with _on_the_disk(topic, partition):
            return _opened(topic, partition, head)


def _opened(topic: Topic, partition: int, head: Head | None) -> PartitionWriter:
    store, meta = topic._store, topic._meta
    check_not_deleted(store, meta)
    writer: PartitionWriter | None = None
    try:
        store._host.fs.make_directory(store._catalog.partition_directory(meta.name, partition))
        writer = writer_at(store, meta, partition)
        store._tierer.claims.check_not_behind(meta, partition, writer, head)
        with store._lock:
            _check_may_open(topic)  # a signal's handler may have closed the store on this very thread
            topic._writers[partition] = writer
        return writer
    except BaseException:
        # Ctrl-C too: nobody else knows of the writer, and it holds the partition's lock.
        if writer is not None and topic._writers.get(partition) is not writer:
            writer.close()
        raise


@contextmanager
def _on_the_disk(topic: Topic, partition: int) -> Iterator[None]:
    """Keep a close and a deletion waiting while files of a partition are opened that nobody else knows of yet."""
    store, key = topic._store, (topic._meta.topic_id, partition)
    try:
        with store._lock:
            _check_may_open(topic)
            store._opening[key] = threading.get_ident()
        yield
    finally:
        store._opening.pop(key, None)


def being_opened(store: Store, meta: TopicMeta | None = None) -> bool:
    """Whether another thread is opening files of a partition, of one topic or of any."""
    me = threading.get_ident()  # a signal's handler must not wait for what it interrupted
    opening = store._opening.copy().items()
    return any(thread != me and (meta is None or key[0] == meta.topic_id) for key, thread in opening)


def wait_for_openings(store: Store) -> None:
    """Return once no other thread opens files of a partition; the caller has seen to it that none begins."""
    while being_opened(store):
        time.sleep(_POLL_SECONDS)


def _check_may_open(topic: Topic) -> None:
    store = topic._store
    store._check_writable()
    if not store._opens_writers:
        raise StoreClosed(f"the store {store.url} is being closed")
    if store._topics.get(topic.name) is not topic:
        check_not_deleted(store, topic._meta)
        raise TopicNotFound(f"topic {topic.name!r} was being deleted; get it anew by store.topic()")


def check_not_deleted(store: Store, meta: TopicMeta) -> None:
    """Raise `TopicNotFound` where a topic is not the one of its name any more.

    It may be deleted right after, unless the caller has the turn of its name, or opens a partition of it.
    """
    if store._catalog.read_topic(meta.name).topic_id != meta.topic_id:
        raise TopicNotFound(
            f"topic {meta.name!r} was deleted and created again; get it anew by store.topic()"
        )


def is_gone(store: Store, meta: TopicMeta) -> bool:
    """Whether a topic was deleted, so that what fails of it is nobody's trouble; False where nobody can tell."""
    try:
        check_not_deleted(store, meta)
    except TopicNotFound:
        return True
    except (TieredError, OSError):
        pass  # the caller has an error of its own
    return False


def writer_at(
    store: Store, meta: TopicMeta, partition: int, *, wait_seconds: float = LOCK_WAIT_SECONDS
) -> PartitionWriter:
    """Open the writer of a partition by the store's settings, whatever the store is opened for.

    Raises
    ------
    TopicNotFound
        The partition has no directory: its topic was deleted. It is not made again, or segments without a topic
        would keep the name from being used.
    StoreLocked, Fenced, CorruptionError, UnsupportedFormat, DiskFull
    """
    settings = store._settings.store
    roll = store._settings.policy_for(meta.name).roll
    root = store._access.places.root
    if root is not None:
        # What was decided is appended again until all of it is there; nobody else's repeats are as late.
        found = (producer_number(decision_producer(path)) for path in open_decisions(root))
        store._pinned_producers.update(found)
    options = WriterOptions(
        fs=store._host.fs,
        clock=store._clock,
        store_id=store.store_id,
        memory=store._memory,
        block_bytes=settings.block_bytes,
        rows_max=settings.sync_every or 1 << 16,
        roll_bytes=roll.bytes if roll.bytes is not None else 1 << 40,
        roll_age_us=None if roll.age is None else to_us(roll.age),
        sync_on_scan=settings.sync != "never",
        sync_when_full=settings.sync_every is not None,
        record_bytes_max=settings.max_record_bytes,
        counters=store._write_counters,
        pinned=store._pinned_producers,
    )
    directory = store._catalog.partition_directory(meta.name, partition)
    if not directory.is_dir():
        raise TopicNotFound(f"topic {meta.name!r} was deleted")
    return PartitionWriter.open(options, directory, meta, partition, wait_seconds=wait_seconds)


def flush_in_background(store: Store) -> None:
    """Write or sync what waits in every open writer, and do what other processes asked of it."""
    never = store._settings.store.sync == "never"
    failed: Exception | None = None

    def flush(writer: PartitionWriter) -> None:
        if writer.dirty:
            writer.write_pending() if never else writer.flush()

    for writer in store._writers():
        # Each by itself: where a full disk keeps records from being written, what is asked may be what makes room.
        for work in (PartitionWriter.roll_if_old, flush, do_what_is_asked, PartitionWriter.close_sealed):
            try:
                work(writer)
            except (StoreClosed, TopicNotFound):
                break  # closed or deleted beside
            except Exception as error:  # noqa: BLE001
                # Whatever it is, the partitions after it must reach the disk (promise P11).
                failed = error
    # What another process evicts keeps its room on the disk until then.
    store._access.forget_removed_at_times()
    if failed is not None:
        raise failed


def _check_can_publish(store: Store, topic: str) -> None:
    if store._settings.store.sync == "cold" and store._settings.policy_for(topic).offload.after is None:
        raise ConfigError(
            f'store.sync = "cold" and offload = "off" exclude each other, and both hold for topic {topic!r}'
        )
