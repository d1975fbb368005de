"""The topics of an open store: their documents, and the writers of their partitions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from uuid import UUID

from ..base.condition import Listeners
from ..base.keyed_locks import KeyedLocks
from ..errors import ConfigError, StoreClosed, TieredError, TopicNotFound, as_tiered_error
from ..format.manifest import Head
from ..format.schema import check_topic_name
from ..format.topic_meta import TopicMeta
from ..hot.partition_writer import PartitionWriter
from ..hot.view import HotView
from .context import StoreContext
from .topic_shape import TopicShape
from .writers import check_not_deleted, open_partition_writer

_POLL_SECONDS = 0.01


class OpenTopic(TopicShape):
    """A topic that is appended to and read. Thread-safe.

    Attributes
    ----------
    context, registry
        The context of the store, and its open topics.
    writers
        The open writers by partition; the first append opens a writer.
    lock
        Guards changes of the topic itself; no append or flush takes it.
    listeners
        Notified when records of any partition become durable, and when the topic or the store ends.
    whole_ends
        For each partition without a writer here: its lineage, and an end offset before which every transaction is whole.
    """

    def __init__(self, topics: OpenTopics, meta: TopicMeta) -> None:
        super().__init__(meta, topics.context.settings.store, topics.context.clock)
        self.context = topics.context
        self.registry = topics
        self.lock = threading.RLock()
        self.writers: dict[int, PartitionWriter] = {}
        self.listeners = Listeners()
        self.whole_ends: dict[int, tuple[int | None, int]] = {}

    def writer(self, partition: int) -> PartitionWriter:
        """Return the writer of a partition; the first call opens it by `OpenTopics.open_writer`."""
        return self.writers.get(partition) or self.registry.open_writer(self, self.check_partition(partition))

    def view(self, partition: int, *, flush: bool = True) -> HotView | None:
        """Return the hot tier of a partition; None if this process has no writer of it."""
        writer = self.writers.get(partition)
        return None if writer is None else writer.view(flush=flush)

    def flush(self) -> None:
        """Return when all records appended before the call are durable, and published if the sync mode says so."""
        self.context.lifecycle.check()
        with suppress(TieredError):  # of another topic; `check_not_suspended` raises that of this one
            self.context.commits.resume()
        ends = {partition: writer.end_offset for partition, writer in list(self.writers.items())}
        # All partitions are synced first: none waits for the bucket, or for another partition that fails.
        with ExitStack() as stack:
            for partition, end in ends.items():
                stack.callback(self.writers[partition].check_not_suspended)
                stack.callback(self.writers[partition].sync_to, end)
        if self.publishes:
            for partition, end in ends.items():
                self.wait_safe(partition, end, None)

    def wait_safe(self, partition: int, end: int, sync: bool | None) -> None:
        """Wait until all records before `end` are durable on this disk, or published if the sync mode says so."""
        writer = self.writers[partition]
        if sync is None and self.publishes:
            self.context.publisher.wait(self.meta, partition, writer, end)
        else:
            writer.sync_to(end)


class OpenTopics:
    """The topics of one open store that were used, by name. Thread-safe.

    Attributes
    ----------
    lock
        Guards the dictionaries only; no thread does I/O while it holds this lock.
    name_locks
        Guard slow work on one topic, by its name.
    """

    def __init__(self, context: StoreContext) -> None:
        self.context = context
        self.lock = threading.RLock()
        self.name_locks = KeyedLocks()
        self._partition_locks = KeyedLocks()
        self._open: dict[str, OpenTopic] = {}
        self._opening: dict[tuple[UUID, int], int] = {}

    def topic_names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        self.context.lifecycle.check()
        names: list[str] = self.context.catalog.topics()
        return names

    def topic(self, name: str) -> OpenTopic:
        """Return a topic.

        Raises
        ------
        TopicNotFound, InvalidName, StoreClosed, CorruptionError, ColdStorageError
        """
        self.context.lifecycle.check()
        check_topic_name(name)
        topic = self._open.get(name)
        if topic is not None and self.context.lifecycle.writes:
            return topic
        with self.name_locks.of(name):
            # An open topic is read again, too: another process may have changed it.
            meta = self.context.catalog.read_topic(name)
            with self.lock:
                topic = self._open.get(name)
                if topic is None or topic.meta != meta:
                    topic = self._open[name] = OpenTopic(self, meta)
                return topic

    def meta(self, name: str) -> TopicMeta:
        """Return the document of a topic; see `topic`."""
        return self.topic(name).meta

    def writer(self, name: str, partition: int) -> PartitionWriter | None:
        """Return the writer of a partition if this process has one; open none."""
        return self.topic(name).writers.get(partition)

    def partitions(
        self, on_error: Callable[[str, TieredError], None] | None = None
    ) -> Iterator[tuple[TopicMeta, int]]:
        """Yield the partitions of all topics.

        Parameters
        ----------
        on_error
            Takes the name of a topic whose document cannot be read, and the error; the other topics follow (promise
            P11). By default the error is raised.
        """
        for name in self.topic_names():
            try:
                meta = self.meta(name)
            except TopicNotFound:
                continue  # deleted since it was listed
            except StoreClosed:
                raise
            except (TieredError, OSError) as error:
                if on_error is None:
                    raise
                on_error(name, as_tiered_error(error))
                continue
            for partition in range(meta.partitions):
                yield meta, partition

    def opened_topics(self) -> list[OpenTopic]:
        """Return the open topics."""
        with self.lock:
            return list(self._open.values())

    def is_open(self, topic: OpenTopic) -> bool:
        """Whether `topic` is still the topic of its name, as far as this process knows."""
        return self._open.get(topic.name) is topic

    def check_not_deleted(self, meta: TopicMeta) -> None:
        """Raise `TopicNotFound` if a topic was deleted. Takes no lock, so it waits for no work on the topic."""
        topic = self._open.get(meta.name)
        if topic is None or topic.meta.topic_id != meta.topic_id:
            check_not_deleted(self.context, meta)

    def writers(self) -> list[PartitionWriter]:
        """Return the open writers of all partitions."""
        return [writer for topic in self.opened_topics() for writer in list(topic.writers.values())]

    def drop(self, topic: OpenTopic) -> None:
        """Remove a topic; from here on no partition of it is opened. The caller holds `lock`."""
        del self._open[topic.name]

    def keep_only(self, names: set[str]) -> None:
        """Remove all topics but these. The caller holds `lock`."""
        for name in self._open.keys() - names:
            del self._open[name]

    def abandon(self) -> None:
        """Replace the locks in a forked child: the threads that held them do not exist there."""
        self.lock = threading.RLock()
        for topic in self._open.values():
            topic.lock = threading.RLock()

    # -- writers ---------------------------------------------------------------------------------

    def open_writer(self, topic: OpenTopic, partition: int) -> PartitionWriter:
        """Return the writer of a partition; the first call opens it.

        The call reads the bucket first and the disk after it. It holds only the lock of this partition, so that all other
        partitions go on. A close and a deletion wait for the work on the disk, never for the bucket.

        Raises
        ------
        TopicNotFound, StoreClosed, ConfigError, ReadOnly, StoreLocked, Fenced, CorruptionError, DiskFull
        """
        self._check_may_open(topic)
        with self._partition_locks.of((topic.meta.topic_id, partition)):
            writer = topic.writers.get(partition)
            if writer is not None:
                return writer
            self._check_may_open(topic)
            _check_can_publish(self.context, topic.name)
            head = self.context.fencing.head_before_appending(topic.meta, partition)
            with self._opening_files(topic, partition):
                return self._open_files(topic, partition, head)

    def _open_files(self, topic: OpenTopic, partition: int, head: Head | None) -> PartitionWriter:
        context, meta = self.context, topic.meta
        check_not_deleted(context, meta)
        writer: PartitionWriter | None = None
        try:
            context.fs.make_directory(context.catalog.partition_directory(meta.name, partition))
            writer = open_partition_writer(context, meta, partition)
            context.fencing.check_not_behind(meta, partition, writer, head)
            context.commits.complete(meta, partition, writer)
            writer.active.listeners = topic.listeners
            with self.lock:
                # A signal handler may have closed the store on this thread.
                self._check_may_open(topic)
                topic.writers[partition] = writer
            return writer
        except BaseException:
            # Also after Ctrl-C: the writer is not registered, and it holds the partition's lock.
            if writer is not None and topic.writers.get(partition) is not writer:
                writer.close()
            raise

    @contextmanager
    def _opening_files(self, topic: OpenTopic, partition: int) -> Iterator[None]:
        """Make a close and a deletion wait while this thread opens the files of a partition."""
        key = topic.meta.topic_id, partition
        try:
            with self.lock:
                self._check_may_open(topic)
                self._opening[key] = threading.get_ident()
            yield
        finally:
            self._opening.pop(key, None)

    def is_opening(self, meta: TopicMeta | None = None) -> bool:
        """Whether another thread opens the files of a partition: of one topic, or of any."""
        me = threading.get_ident()  # a signal handler must not wait for the thread that it interrupted
        opening = self._opening.copy().items()
        return any(thread != me and (meta is None or key[0] == meta.topic_id) for key, thread in opening)

    def begin_closing(self) -> None:
        """Refuse to open more partitions; return when no other thread opens the files of one."""
        with self.lock:
            # Otherwise a writer that another thread opens now would stay open and never be flushed.
            self.context.lifecycle.begin_closing()
        while self.is_opening():
            time.sleep(_POLL_SECONDS)

    def _check_may_open(self, topic: OpenTopic) -> None:
        self.context.lifecycle.check_may_open()
        if not self.is_open(topic):
            check_not_deleted(self.context, topic.meta)
            raise TopicNotFound(f"topic {topic.name!r} was being deleted; get it anew by store.topic()")


def _check_can_publish(context: StoreContext, topic: str) -> None:
    settings = context.settings
    if settings.store.sync == "cold" and settings.policy_for(topic).offload.after is None:
        raise ConfigError(
            f'store.sync = "cold" and offload = "off" exclude each other, and both hold for topic {topic!r}'
        )
