"""`AsyncConsumer`: a consumer whose polls can be cancelled without the loss of a record."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import pyarrow as pa

from ..errors import ConfigError
from ..store.interface.consumer import Consumer, check_timeout
from ..store.interface.consumer_positions import ReadOffsets
from .threads import Threads

_RECORDS_MAX = 10_000


class AsyncConsumer:
    """A `Consumer` for coroutines; get it from `AsyncTopic.consumer`.

    The next `poll` returns the records that a cancelled one had read. `commit` commits the positions behind returned records.

    Attributes
    ----------
    sync : Consumer
        The consumer itself. Its positions may be ahead of what was returned here.
    """

    def __init__(self, consumer: Consumer, threads: Threads) -> None:
        self.sync = consumer
        self._threads = threads
        self._returned, self._lineages = consumer.position(), consumer.lineages()
        self._read: deque[pa.RecordBatch] = deque()
        self._read_lineages = consumer.lineages()
        self._reading: Future[list[pa.RecordBatch]] | None = None
        self._turn: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._wakes: set[threading.Event] = set()

    async def poll(
        self, timeout: float | None = 1.0, max_records: int = _RECORDS_MAX  # noqa: ASYNC109 (as Consumer.poll)
    ) -> list[pa.RecordBatch]:  # fmt: skip
        """Return the next records; see `Consumer.poll`."""
        if type(max_records) is not int or max_records < 1:
            raise ConfigError(f"max_records is a whole number above 0, not {max_records!r}")
        check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        batches: list[pa.RecordBatch] = []
        if await self._wait_for_some(deadline):
            while max_records and self._read:
                batch = self._read.popleft()
                if batch.num_rows > max_records:
                    self._read.appendleft(batch.slice(max_records))
                    batch = batch.slice(0, max_records)
                max_records -= batch.num_rows
                batches.append(self._return(batch))
        return batches

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield batches without end, each of one partition; each counts as returned when it is yielded."""
        while await self._wait_for_some(None):
            yield self._return(self._read.popleft())

    def _return(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        partition = batch.column("partition")[0].as_py()
        self._returned[partition] = batch.column("offset")[-1].as_py() + 1
        self._lineages[partition] = self._read_lineages[partition]
        return batch

    async def _wait_for_some(self, deadline: float | None) -> bool:
        """Wait until there are batches to return; False after the deadline. No other coroutine runs before the caller goes on."""
        while True:
            await self._fill()
            left = None if deadline is None else deadline - time.monotonic()
            if self._read or (left is not None and left <= 0):
                return bool(self._read)
            await self._wait(left)

    async def _fill(self) -> None:
        """Read the present records without waiting for more; after a cancellation, the next call takes over its read."""
        async with self._turns():
            if self._read:
                return
            if self._reading is None:
                self._reading = self._threads.start(lambda: self.sync.poll(0, _RECORDS_MAX))
            try:
                batches = await self._threads.result(self._reading)
            except Exception:  # no cancellation, and no end of a task whose loop was closed
                self._reading = None
                raise
            self._reading = None
            self._read.extend(batches)
            self._read_lineages = self.sync.lineages()
            read = {batch.column("partition")[0].as_py() for batch in batches}
            for partition, position in self.sync.position().items():
                if partition not in read:  # it may have moved over records that are gone
                    self._returned[partition] = position
                    self._lineages[partition] = self._read_lineages[partition]

    def _turns(self) -> asyncio.Lock:
        """Return the lock for calls that take turns: one for each event loop, as a closed loop may have left its own locked.

        Raises
        ------
        ConfigError
            An event loop that is not closed uses the consumer.
        """
        loop = asyncio.get_running_loop()
        if self._turn is not None and self._turn[0] is not loop and not self._turn[0].is_closed():
            raise ConfigError(
                f"consumer {self.sync.name!r} belongs to another event loop until that is closed; make a consumer for each loop"
            )
        if self._turn is None or self._turn[0] is not loop:
            self._turn = loop, asyncio.Lock()
        return self._turn[1]

    async def _wait(self, seconds: float | None) -> None:
        """Wait until a partition may have more records; a second at most."""
        wake = threading.Event()
        self._wakes.add(wake)
        positions = self.sync.position()
        waiting = self._threads.start(lambda: self.sync.topic.wait_durable(positions, seconds, wake))
        try:
            await self._threads.result(waiting)
        finally:
            wake.set()
            self._wakes.discard(wake)

    # -- positions -------------------------------------------------------------------------------

    def position(self) -> dict[int, int]:
        """Return the offset of the next record to return, by partition."""
        return dict(self._returned)

    async def commit(self, offsets: Mapping[int, int] | None = None, *, sync: bool | None = None) -> None:
        """Commit positions, by default those behind what was returned; see `Consumer.commit`."""
        chosen = self.returned() if offsets is None else ReadOffsets(dict(offsets), dict(self._lineages))
        await self._threads.run(lambda: self.sync.commit(chosen, sync=sync))

    def returned(self) -> Mapping[int, int]:
        """Return the positions that `commit` would store, unless they are stored already."""
        return ReadOffsets(dict(self._returned), dict(self._lineages), all_returned=True)

    async def lag(self) -> dict[int, int]:
        """Return the number of durable records that were not returned yet, by partition."""
        lags, read = await self._threads.run(lambda: (self.sync.lag(), self.sync.position()))
        return {key: lag + read[key] - self._returned[key] for key, lag in lags.items()}

    async def seek(self, to: Mapping[int, int] | object) -> None:
        """Continue at other offsets; see `Consumer.seek`."""
        async with self._turns():
            if self._reading is not None:
                await self._threads.ended(self._reading)
            if isinstance(to, Mapping):
                # The other partitions go on behind what was returned, and not behind what was read.
                ahead = self.sync.position()
                others = {key: at for key, at in self._returned.items() if ahead[key] != at and key not in to}
                to = ReadOffsets(others | dict(to), {key: self._lineages[key] for key in others})
            await self._threads.run(lambda: self.sync.seek(to))
            self._reading = None
            self._read.clear()
            self._returned, self._lineages = self.sync.position(), self.sync.lineages()

    # -- its end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """End the consumer; a `poll` that waits raises `StoreClosed`."""
        self.sync.close()
        for wake in list(self._wakes):
            wake.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self.sync).replace("<Consumer", "<AsyncConsumer", 1)
