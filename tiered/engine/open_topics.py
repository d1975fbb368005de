"""The topics of an open store: their documents, and the writers of their partitions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from uuid import UUID

from ..base.keyed_locks import Turns
from ..errors import ConfigError, StoreClosed, TieredError, TopicNotFound, as_tiered_error
from ..format.manifest import Head
from ..format.schema import check_topic_name
from ..format.topic_meta import TopicMeta
from ..hot.partition_writer import PartitionWriter
from ..hot.view import HotView
from .context import StoreContext
from .topic_shape import TopicShape
from .writers import check_not_deleted, writer_at

_POLL_SECONDS = 0.01


class OpenTopic(TopicShape):
    """A topic that is appended to and read. Thread-safe.

    Attributes
    ----------
    context, registry
        The store that it is of, and the open topics of that store.
    writers
        By partition; opened by the first append.
    lock
        Of changes to the topic itself; no append or flush takes it.
    """

    def __init__(self, topics: OpenTopics, meta: TopicMeta) -> None:
        super().__init__(meta, topics.context.settings.store, topics.context.clock)
        self.context = topics.context
        self.registry = topics
        self.lock = threading.RLock()
        self.writers: dict[int, PartitionWriter] = {}

    def writer(self, partition: int) -> PartitionWriter:
        """Return the writer of a partition; open it where that was not done yet; see `OpenTopics.open_writer`."""
        return self.writers.get(partition) or self.registry.open_writer(self, self.check_partition(partition))

    def view(self, partition: int, *, flush: bool = True) -> HotView | None:
        """Return what the writer of a partition shows to readers; None where this process has none."""
        writer = self.writers.get(partition)
        return None if writer is None else writer.view(flush=flush)

    def flush(self) -> None:
        """Return once everything appended before the call is durable, or, if the mode says so, published."""
        self.context.lifecycle.check()
        ends = {partition: writer.end_offset for partition, writer in list(self.writers.items())}
        # All of them first: what is durable here must not wait for a bucket, nor for a partition that fails.
        with ExitStack() as every_one:
            for partition, end in ends.items():
                every_one.callback(self.writers[partition].sync_to, end)
        if self.publishes:
            for partition, end in ends.items():
                self.wait_safe(partition, end, None)

    def wait_safe(self, partition: int, end: int, sync: bool | None) -> None:
        """Wait until everything before `end` is durable here, or, if the mode says so, published."""
        writer = self.writers[partition]
        if sync is None and self.publishes:
            self.context.publisher.wait(self.meta, partition, writer, end)
        else:
            writer.sync_to(end)


class OpenTopics:
    """The topics of one open store that were asked for, by name. Thread-safe.

    Attributes
    ----------
    lock
        Of the dictionaries alone: nobody asks a disk or a bucket while he holds it.
    names
        What takes long is done under the turn of one topic's name, or of one partition that is being opened.
    """

    def __init__(self, context: StoreContext) -> None:
        self.context = context
        self.lock = threading.RLock()
        self.names = Turns()
        self._partitions = Turns()
        self._open: dict[str, OpenTopic] = {}
        self._opening: dict[tuple[UUID, int], int] = {}

    def listed(self) -> list[str]:
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
        with self.names.of(name):
            # Also where it is known: another process may have changed it since.
            meta = self.context.catalog.read_topic(name)
            with self.lock:
                topic = self._open.get(name)
                if topic is None or topic.meta != meta:
                    topic = self._open[name] = OpenTopic(self, meta)
                return topic

    def meta(self, name: str) -> TopicMeta:
        """Return the document of a topic, as `topic` does."""
        return self.topic(name).meta

    def writer(self, name: str, partition: int) -> PartitionWriter | None:
        """Return the writer of a partition, where this process has one; it opens none."""
        return self.topic(name).writers.get(partition)

    def partitions(
        self, trouble: Callable[[str, TieredError], None] | None = None
    ) -> Iterator[tuple[TopicMeta, int]]:
        """Yield the partitions of all topics.

        Parameters
        ----------
        trouble
            Called with the name of a topic whose document cannot be read, and why, which stops no other topic
            (promise P11); by default it is raised.
        """
        for name in self.listed():
            try:
                meta = self.meta(name)
            except TopicNotFound:
                continue  # deleted since it was listed
            except StoreClosed:
                raise
            except (TieredError, OSError) as error:
                if trouble is None:
                    raise
                trouble(name, as_tiered_error(error))
                continue
            for partition in range(meta.partitions):
                yield meta, partition

    def open_now(self) -> list[OpenTopic]:
        """Return the topics that were asked for."""
        with self.lock:
            return list(self._open.values())

    def is_open(self, topic: OpenTopic) -> bool:
        """Whether a topic is the one of its name still, as far as this process knows."""
        return self._open.get(topic.name) is topic

    def writers(self) -> list[PartitionWriter]:
        """Return the open writers of all partitions."""
        return [writer for topic in self.open_now() for writer in list(topic.writers.values())]

    def drop(self, topic: OpenTopic) -> None:
        """Forget a topic: from here on no partition of it is opened. The caller holds `lock`."""
        del self._open[topic.name]

    def keep_only(self, names: set[str]) -> None:
        """Forget all topics but these. The caller holds `lock`."""
        for name in self._open.keys() - names:
            del self._open[name]

    def abandon(self) -> None:
        """In a forked child: take new locks, as those who held the old ones are not there."""
        self.lock = threading.RLock()
        for topic in self._open.values():
            topic.lock = threading.RLock()

    # -- writers ---------------------------------------------------------------------------------

    def open_writer(self, topic: OpenTopic, partition: int) -> PartitionWriter:
        """Return the writer of a partition; open it where that was not done yet.

        The bucket is asked, and the disk after it, under no lock but the turn of this one partition: a close and a
        deletion wait for what is done on the disk, and for nothing of the bucket. All other partitions go on.

        Raises
        ------
        TopicNotFound, StoreClosed, ConfigError, ReadOnly, StoreLocked, Fenced, CorruptionError, DiskFull
        """
        self._check_may_open(topic)
        with self._partitions.of((topic.meta.topic_id, partition)):
            found = topic.writers.get(partition)
            if found is not None:
                return found
            self._check_may_open(topic)
            _check_can_publish(self.context, topic.name)
            head = self.context.fencing.head_before_appending(topic.meta, partition)
            with self._on_the_disk(topic, partition):
                return self._opened(topic, partition, head)

    def _opened(self, topic: OpenTopic, partition: int, head: Head | None) -> PartitionWriter:
        context, meta = self.context, topic.meta
        check_not_deleted(context, meta)
        writer: PartitionWriter | None = None
        try:
            context.fs.make_directory(context.catalog.partition_directory(meta.name, partition))
            writer = writer_at(context, meta, partition)
            context.fencing.check_not_behind(meta, partition, writer, head)
            with self.lock:
                self._check_may_open(
                    topic
                )  # a signal's handler may have closed the store on this very thread
                topic.writers[partition] = writer
            return writer
        except BaseException:
            # Ctrl-C too: nobody else knows of the writer, and it holds the partition's lock.
            if writer is not None and topic.writers.get(partition) is not writer:
                writer.close()
            raise

    @contextmanager
    def _on_the_disk(self, topic: OpenTopic, partition: int) -> Iterator[None]:
        """Keep a close and a deletion waiting while files of a partition are opened that nobody else knows of yet."""
        key = topic.meta.topic_id, partition
        try:
            with self.lock:
                self._check_may_open(topic)
                self._opening[key] = threading.get_ident()
            yield
        finally:
            self._opening.pop(key, None)

    def being_opened(self, meta: TopicMeta | None = None) -> bool:
        """Whether another thread is opening files of a partition, of one topic or of any."""
        me = threading.get_ident()  # a signal's handler must not wait for what it interrupted
        opening = self._opening.copy().items()
        return any(thread != me and (meta is None or key[0] == meta.topic_id) for key, thread in opening)

    def begin_closing(self) -> None:
        """Let no partition be opened any more, and return once no other thread opens files of one."""
        with self.lock:
            # Or a writer that another thread opens meanwhile would stay open, and never be flushed again.
            self.context.lifecycle.begin_closing()
        while self.being_opened():
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
