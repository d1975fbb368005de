"""`AsyncTopic`: appends to a topic from coroutines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ..engine.append import append_prepared, prepare_record
from ..engine.open_topics import OpenTopic
from ..engine.records import Appended, OffsetRange, Record
from ..format.record import Headers, partition_of
from ..reader.query import check_sync
from ..store.interface.topic import Topic
from ..transactions.positions import check_not_own
from .consumer import AsyncConsumer
from .shared_sync import SharedSync
from .threads import Opening, Threads, made


class AsyncTopic:
    """A `Topic` for coroutines; get it from `AsyncStore.topic`.

    Attributes
    ----------
    sync : Topic
        The topic itself, for what is not here, such as scans.
    """

    def __init__(self, topic: Topic, threads: Threads, syncs: SharedSync) -> None:
        self.sync = topic
        self._threads = threads
        self._syncs = syncs

    @property
    def name(self) -> str:
        return self.sync.name

    async def append(
        self,
        value: Any,
        *,
        key: bytes | str | int | None = None,
        headers: Mapping[str, bytes] | Headers | None = None,
        timestamp: object = None,
        partition: int | None = None,
        sync: bool | None = None,
        expected_offset: int | None = None,
    ) -> Appended:
        """Append one record; see `Topic.append`. Tasks that wait for the disk at the same time share its syncs.

        A cancelled call may have appended the record, and nothing appends it again.

        Raises
        ------
        TieredError
            As `Topic.append`.
        """
        opened = self.sync.opened
        if expected_offset is not None or not isinstance(opened, OpenTopic) or opened.publishes:
            return await self._threads.run(
                lambda: self.sync.append(
                    value, key=key, headers=headers, timestamp=timestamp, partition=partition, sync=sync,
                    expected_offset=expected_offset,
                )
            )  # fmt: skip
        check_sync(sync)
        check_not_own(opened.name)
        record = prepare_record(opened, value, key, headers, timestamp, partition)
        chosen = record.partition
        if chosen is None:
            placing = record.partition_key
            chosen = partition_of(placing, opened.partitions) if placing else opened.sticky
        writer = opened.writers.get(chosen)
        if writer is None or writer.pending.is_full or writer.pending.lock.locked():
            # The append opens files, writes a block, or waits for the thread that holds the partition.
            appended = await self._threads.run(lambda: append_prepared(opened, record))
        else:
            appended = append_prepared(opened, record)
        if sync if sync is not None else opened.waits:
            await self._syncs.durable(opened.writer(appended.partition), appended.offset + 1)
        return appended

    async def append_many(self, records: Iterable[bytes | Mapping[str, Any] | Record]) -> list[OffsetRange]:
        """Append records; see `Topic.append_many`. A cancellation waits for its end."""
        return await self._threads.run(lambda: self.sync.append_many(records))

    async def append_batch(
        self, data: Any, *, partition: int | None = None, sync: bool | None = None
    ) -> list[OffsetRange]:
        """Append Arrow data; see `Topic.append_batch`. A cancellation waits for its end."""
        return await self._threads.run(lambda: self.sync.append_batch(data, partition=partition, sync=sync))

    async def flush(self) -> None:
        """Return when all records that were appended before are durable; see `Topic.flush`."""
        await self._threads.run(self.sync.flush)

    def consumer(
        self,
        name: str,
        *,
        partitions: Iterable[int] | int | None = None,
        start: object = "earliest",
        on_rewind: Literal["error", "earliest", "latest"] = "error",
    ) -> Opening[AsyncConsumer]:
        """Begin a session of a consumer; see `Topic.consumer`. Use it by ``async with``, or ``await`` it."""

        async def make() -> AsyncConsumer:
            consumer = await made(
                self._threads,
                lambda: self.sync.consumer(name, partitions=partitions, start=start, on_rewind=on_rewind),
                lambda found: found.close(),
            )
            return AsyncConsumer(consumer, self._threads)

        return Opening(make)

    def __repr__(self) -> str:
        return f"<AsyncTopic {self.name!r}>"
