"""The partition writers of a store: opened by its settings, and flushed in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..base.units import to_us
from ..errors import StoreClosed, TieredError, TopicNotFound
from ..format.producers import producer_number
from ..format.topic_meta import TopicMeta
from ..hot.partition_writer import LOCK_WAIT_SECONDS, PartitionWriter
from ..hot.recovery import WriterOptions
from ..hot.writer_requests import serve_requests
from ..warm.open_commits import decision_producer, open_decisions
from .context import StoreContext


def check_not_deleted(context: StoreContext, meta: TopicMeta) -> None:
    """Raise `TopicNotFound` where a topic is not the one of its name any more.

    It may be deleted right after, unless the caller has the turn of its name, or opens a partition of it.
    """
    if context.catalog.read_topic(meta.name).topic_id != meta.topic_id:
        raise TopicNotFound(
            f"topic {meta.name!r} was deleted and created again; get it anew by store.topic()"
        )


def is_gone(context: StoreContext, meta: TopicMeta) -> bool:
    """Whether a topic was deleted, so that what fails of it is nobody's trouble; False where nobody can tell."""
    try:
        check_not_deleted(context, meta)
    except TopicNotFound:
        return True
    except (TieredError, OSError):
        pass  # the caller has an error of its own
    return False


def writer_at(
    context: StoreContext, meta: TopicMeta, partition: int, *, wait_seconds: float = LOCK_WAIT_SECONDS
) -> PartitionWriter:
    """Open the writer of a partition by the store's settings, whatever the store is opened for.

    Raises
    ------
    TopicNotFound
        The partition has no directory: its topic was deleted. It is not made again, or segments without a topic
        would keep the name from being used.
    StoreLocked, Fenced, CorruptionError, UnsupportedFormat, DiskFull
    """
    settings = context.settings.store
    roll = context.settings.policy_for(meta.name).roll
    root = context.tiers.locations.root
    if root is not None:
        # What was decided is appended again until all of it is there; nobody else's repeats are as late.
        found = (producer_number(decision_producer(path)) for path in open_decisions(root))
        context.pinned_producers.update(found)
    options = WriterOptions(
        fs=context.fs,
        clock=context.clock,
        store_id=context.store_id,
        memory=context.memory,
        block_bytes=settings.block_bytes,
        rows_max=settings.sync_every or 1 << 16,
        roll_bytes=roll.bytes if roll.bytes is not None else 1 << 40,
        roll_age_us=None if roll.age is None else to_us(roll.age),
        sync_on_scan=settings.sync != "never",
        sync_when_full=settings.sync_every is not None,
        record_bytes_max=settings.max_record_bytes,
        counters=context.write_counters,
        pinned=context.pinned_producers,
    )
    directory = context.catalog.partition_directory(meta.name, partition)
    if not directory.is_dir():
        raise TopicNotFound(f"topic {meta.name!r} was deleted")
    return PartitionWriter.open(options, directory, meta, partition, wait_seconds=wait_seconds)


def flush_in_background(context: StoreContext, writers: Callable[[], Iterable[PartitionWriter]]) -> None:
    """Write or sync what waits in every open writer, and do what other processes asked of it."""
    never = context.settings.store.sync == "never"
    failed: Exception | None = None

    def flush(writer: PartitionWriter) -> None:
        if writer.dirty:
            writer.write_pending() if never else writer.flush()

    for writer in writers():
        # Each by itself: where a full disk keeps records from being written, what is asked may be what makes room.
        for work in (PartitionWriter.roll_if_old, flush, serve_requests, PartitionWriter.close_sealed):
            try:
                work(writer)
            except (StoreClosed, TopicNotFound):
                break  # closed or deleted beside
            except Exception as error:  # noqa: BLE001
                # Whatever it is, the partitions after it must reach the disk (promise P11).
                failed = error
    # What another process evicts keeps its room on the disk until then.
    context.tiers.release_removed_if_due()
    if failed is not None:
        raise failed
