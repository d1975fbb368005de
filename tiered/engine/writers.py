"""Partition writers of a store: opening with its settings, and flushing in the background."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from ..base.units import to_us
from ..errors import StoreClosed, TieredError, TopicNotFound
from ..format.schema import TRANSACTIONS_TOPIC
from ..format.topic_meta import TopicMeta
from ..hot.partition_writer import LOCK_WAIT_SECONDS, PartitionWriter
from ..hot.recent_blocks import HotMemory
from ..hot.recovery import WriterOptions
from ..hot.writer_requests import serve_requests
from .context import StoreContext

# Each open writer has its turn for the steps that take a system call within this time.
_TURN_SECONDS = 1.0
# The least number of writers that have their turn in one run.
_TURN_WRITERS = 64


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
    options = WriterOptions(
        fs=context.fs,
        clock=context.clock,
        store_id=context.store_id,
        # No reader takes the transaction log from memory.
        memory=HotMemory(0) if meta.name == TRANSACTIONS_TOPIC else context.memory,
        block_bytes=settings.block_bytes,
        rows_max=settings.sync_every or 1 << 16,
        roll_bytes=roll.bytes if roll.bytes is not None else 1 << 40,
        roll_age_us=None if roll.age is None else to_us(roll.age),
        sync_on_scan=settings.sync != "never",
        sync_when_full=settings.sync_every is not None,
        counters=context.write_counters,
        pinned=context.pinned_producers,
    )
    directory = context.catalog.partition_directory(meta.name, partition)
    if not directory.is_dir():
        raise TopicNotFound(f"topic {meta.name!r} was deleted")
    return PartitionWriter.open(options, directory, meta, partition, wait_seconds=wait_seconds)


class BackgroundFlush:
    """What a store's thread does every `sync_interval`: each open writer's pending records are written or synced.

    Rolling by age and serving the requests of other processes takes a system call a writer. So each run does it for some of
    the writers, such that all have their turn within a second, or within `sync_interval` if that is longer.
    """

    def __init__(
        self,
        context: StoreContext,
        writers: Callable[[], Sequence[PartitionWriter]],
        interval_seconds: float = _TURN_SECONDS,
    ) -> None:
        self._context = context
        self._writers = writers
        self._never = context.settings.store.sync == "never"
        self._share = min(1.0, interval_seconds / _TURN_SECONDS)
        self._next = 0

    def run(self) -> None:
        """Go over the open writers once.

        Raises
        ------
        Exception
            The last error, after all writers had their turn.
        """
        failed: Exception | None = None
        try:
            self._context.commits.resume()
        except Exception as error:  # noqa: BLE001 — as below
            failed = error
        writers = self._writers()
        turn = self._turn(len(writers))
        for number, writer in enumerate(writers):
            # Each step runs alone: on a full disk a flush fails, and a request may free space.
            for work in self._all_steps if number in turn else (self._flush,):
                try:
                    work(writer)
                except (StoreClosed, TopicNotFound):
                    break  # another thread closed the store or deleted the topic
                except Exception as error:  # noqa: BLE001
                    # After any error the other partitions must still reach the disk (promise P11).
                    failed = error
        # An evicted segment occupies the disk until it is closed here.
        self._context.tiers.release_removed_if_due()
        if failed is not None:
            raise failed

    @property
    def _all_steps(self) -> tuple[Callable[[PartitionWriter], object], ...]:
        return PartitionWriter.roll_if_old, self._flush, self._serve, PartitionWriter.close_sealed

    def _serve(self, writer: PartitionWriter) -> None:
        serve_requests(writer, self._context.commits.shorten_log_soon)

    def _flush(self, writer: PartitionWriter) -> None:
        if writer.dirty:
            writer.write_pending() if self._never else writer.flush()

    def _turn(self, count: int) -> range:
        """Return the numbers of the writers whose turn it is. One that comes or goes moves some turns by a second."""
        first = self._next if self._next < count else 0
        turn = range(first, min(count, first + max(_TURN_WRITERS, ceil(count * self._share))))
        self._next = turn.stop
        return turn
