"""The partition writers of a store: opened by its settings, and flushed in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import ConfigError, StoreClosed, TieredError, TopicNotFound
from .format.producers import producer_number
from .hot.asked import do_what_is_asked
from .hot.opening import WriterOptions
from .hot.partition_writer import LOCK_WAIT_SECONDS, PartitionWriter
from .units import to_us
from .warm.catalog import TopicMeta
from .warm.decisions import decision_producer, open_decisions

if TYPE_CHECKING:
    from .store import Store


def open_writer(store: Store, meta: TopicMeta, partition: int) -> PartitionWriter:
    """Open the writer of a partition whose topic is still the one that the caller means.

    Raises
    ------
    TopicNotFound, ConfigError, ReadOnly, StoreLocked, Fenced, ColdStorageError
    """
    with store._lock:
        store._check_writable()
        if not store._opens_writers:
            raise StoreClosed(f"the store {store.url} is being closed")
        check_not_deleted(store, meta)
        _check_can_publish(store, meta.name)
        store._host.fs.make_directory(store._catalog.partition_directory(meta.name, partition))
        writer = writer_at(store, meta, partition)
        try:
            store._tierer.claims.check_not_behind(meta, partition, writer)
        except BaseException:
            # Ctrl-C too, while a bucket is asked: nobody else knows of the writer, and it holds the lock.
            writer.close()
            raise
        return writer


def check_not_deleted(store: Store, meta: TopicMeta) -> None:
    """Raise `TopicNotFound` where a topic is not the one of its name any more.

    It may be deleted right after, unless the caller holds the store's lock.
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
