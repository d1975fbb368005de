"""Calls on threads whose coroutines are gone."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

from tiered.aio.threads import Threads


def test_the_error_of_a_call_that_nobody_awaits_any_more_is_not_reported() -> None:
    """The next call takes such a result over, or nobody does, as after a close."""
    reported: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        threads, end = Threads(), threading.Event()

        def call() -> None:
            end.wait(60)
            raise ValueError

        waiting = asyncio.create_task(threads.result(threads.start(call)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        del waiting
        end.set()
        threads.close()
        for thread in threading.enumerate():
            if thread.name.startswith("tiered-aio"):
                thread.join(60)
        await asyncio.sleep(0)
        gc.collect()

    asyncio.run(main())
    assert reported == []
