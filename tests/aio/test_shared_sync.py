"""No coroutine waits for a sync that no thread makes any more."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.stores import stepwise
from tiered.aio.shared_sync import _THREADS, SharedSync
from tiered.errors import StoreClosed


def test_each_wait_that_begins_after_the_close_raises(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "data", settings=stepwise(offload="off")) as store:
        topic = store.create_topic("t")
        topic.append(b"a")
        writer = topic.opened.writer(0)

        async def main() -> None:
            syncs = SharedSync()
            syncs.close()
            for _ in range(2):
                with pytest.raises(StoreClosed):
                    await asyncio.wait_for(syncs.durable(writer, 1 << 40), 10)

        asyncio.run(main())


class StuckWriter:
    """A partition whose disk does not answer until it is released."""

    durable_offset = 0

    def __init__(self, released: threading.Event) -> None:
        self._released = released

    def sync_to(self, end: int) -> None:
        self._released.wait(30)
        self.durable_offset = end


def test_the_close_ends_the_waits_that_no_thread_has_taken() -> None:
    """All threads wait for slow disks, and no more are started."""

    async def main() -> None:
        syncs, released = SharedSync(), threading.Event()
        writers: list[Any] = [StuckWriter(released) for _ in range(_THREADS + 1)]
        waits = [syncs.durable(writer, 1) for writer in writers]
        syncs.close()
        try:
            with pytest.raises(StoreClosed):
                await asyncio.wait_for(waits[-1], 10)
        finally:
            released.set()
        await asyncio.wait_for(asyncio.gather(*waits[:-1], return_exceptions=True), 10)

    asyncio.run(main())
