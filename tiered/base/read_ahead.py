"""Read-ahead: a thread makes the next items while the caller uses the last ones."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterable
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def read_ahead(items: Iterable[T], depth: int = 2) -> Generator[T, None, None]:
    """Yield `items` in order; after the first ``depth`` items a thread makes them, at most ``depth`` ahead.

    Fewer items start no thread. Close the generator (``contextlib.closing``) if it may not be exhausted: that waits for
    the item in progress. An error of `items` is raised after the items before it.
    """
    iterator = iter(items)
    first = list(islice(iterator, depth))
    yield from first
    if len(first) == depth:
        yield from _items_from_thread(iterator, depth)


def _items_from_thread(iterator: Iterable[T], depth: int) -> Generator[T, None, None]:
    waiting: deque[T] = deque()
    failure: list[BaseException] = []
    free, ready = threading.Semaphore(depth), threading.Semaphore(0)
    stopped = threading.Event()

    def make() -> None:
        try:
            for item in iterator:
                waiting.append(item)
                ready.release()
                free.acquire()
                if stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 — the reading thread raises it
            failure.append(error)
        finally:
            ready.release()

    thread = threading.Thread(target=make, name="tiered-read-ahead")
    try:
        # Within the try: the thread may run already when Ctrl-C interrupts `start`.
        thread.start()
        while True:
            ready.acquire()
            if not waiting:
                break
            item = waiting.popleft()
            free.release()
            yield item
    finally:
        stopped.set()
        free.release()
        if thread.is_alive():
            thread.join()
    if failure:
        raise failure[0]
