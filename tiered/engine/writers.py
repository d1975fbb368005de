"""Partition writers of a store: opening with its settings, and flushing in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..base.units import to_us
from ..errors import StoreClosed, TieredError, TopicNotFound
from ..format.producers import producer_number
from ..format.schema import TRANSACTIONS_TOPIC
from ..format.topic_meta import TopicMeta
from ..hot.partition_writer import LOCK_WAIT_SECONDS, PartitionWriter
from ..hot.recent_blocks import HotMemory
from ..hot.recovery import WriterOptions
from ..hot.writer_requests import serve_requests
from ..warm.open_commits import decision_producer, open_decisions
from .context import StoreContext


def check_not_deleted(context: StoreContext, meta: TopicMeta) -> None:
    """Raise `TopicNotFound` if a topic was deleted.

    It may be deleted right after this check, unless the caller holds the lock of its name or opens a partition of it.
    """
    if context.catalog.read_topic(meta.name).topic_id != meta.topic_id:
        raise TopicNotFound(
            f"topic {meta.name!r} was deleted and created again; get it anew by store.topic()"
        )


def is_gone(context: StoreContext, meta: TopicMeta) -> bool:
    """Whether a topic was deleted, so that errors of it do not matter; False if this cannot be read."""
    try:
        check_not_deleted(context, meta)
    except TopicNotFound:
        return True
    except (TieredError, OSError):
        pass  # the caller has an error of its own
    return False


def open_partition_writer(
    context: StoreContext, meta: TopicMeta, partition: int, *, wait_seconds: float = LOCK_WAIT_SECONDS
) -> PartitionWriter:
    """Open the writer of a partition with the store's settings; the store may be open for appends or for passes.

    Raises
    ------
    TopicNotFound
        The partition has no directory, because its topic was deleted. The directory is not created: segments without a
        topic would block the name.
    StoreLocked, Fenced, CorruptionError, UnsupportedFormat, DiskFull
    """
    settings = context.settings.store
    roll = context.settings.policy_for(meta.name).roll
    root = context.tiers.locations.root
    if root is not None:
        # A decided commit is appended again until it is complete, so its producer must be remembered until then.
        producers = (producer_number(decision_producer(path)) for path in open_decisions(root))
        context.pinned_producers.update(producers)
    options = WriterOptions(
        fs=context.fs,
        clock=context.clock,
        store_id=context.store_id,
        # Nobody reads the transaction log from memory.
        memory=HotMemory(0) if meta.name == TRANSACTIONS_TOPIC else context.memory,
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
    """Write or sync the pending records of every open writer, and serve the requests of other processes."""
    never = context.settings.store.sync == "never"
    failed: Exception | None = None

    def flush(writer: PartitionWriter) -> None:
        if writer.dirty:
            writer.write_pending() if never else writer.flush()

    for writer in writers():
        # Each step runs alone: on a full disk a flush fails, and a request may free space.
        for work in (PartitionWriter.roll_if_old, flush, serve_requests, PartitionWriter.close_sealed):
            try:
                work(writer)
            except (StoreClosed, TopicNotFound):
                break  # another thread closed the store or deleted the topic
            except Exception as error:  # noqa: BLE001
                # After any error the other partitions must still reach the disk (promise P11).
                failed = error
    # An evicted segment occupies the disk until it is closed here.
    context.tiers.release_removed_if_due()
    if failed is not None:
        raise failed
