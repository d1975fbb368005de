"""Make the next items on another thread while the last ones are used, with a bound on how many wait."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterable
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def read_ahead(items: Iterable[T], depth: int = 2) -> Generator[T, None, None]:
    """Yield `items` in order; from the ``depth``-th on they are made on a thread, ``depth`` of them in advance.

    Few items start no thread. To be closed (``contextlib.closing``) where it may not be used up: that waits for the
    item which is being made. An error of `items` is raised in its place.
    """
    iterator = iter(items)
    first = list(islice(iterator, depth))
    yield from first
    if len(first) == depth:
        yield from _made_on_a_thread(iterator, depth)


def _made_on_a_thread(iterator: Iterable[T], depth: int) -> Generator[T, None, None]:
    made: deque[T] = deque()
    failure: list[BaseException] = []
    free, ready = threading.Semaphore(depth), threading.Semaphore(0)
    stopped = threading.Event()

    def make() -> None:
        try:
            for item in iterator:
                made.append(item)
                ready.release()
                free.acquire()
                if stopped.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever reads
            failure.append(error)
        finally:
            ready.release()

    thread = threading.Thread(target=make, name="tiered-read-ahead")
    try:
        # Within the try: the thread may be running when Ctrl-C comes before `start` has returned.
        thread.start()
        while True:
            ready.acquire()
            if not made:
                break
            item = made.popleft()
            free.release()
            yield item
    finally:
        stopped.set()
        free.release()
        if thread.is_alive():
            thread.join()
    if failure:
        raise failure[0]
