"""No coroutine waits for a sync that no thread makes any more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import tiered
from tests.support.stores import stepwise
from tiered.aio.shared_sync import SharedSync
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
