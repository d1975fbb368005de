"""A worker thread works after each wake-up until it is closed, and outlives the errors of its work."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from tiered.base.worker_thread import WorkerThread


def test_it_works_after_each_wake_also_after_an_error() -> None:
    done: SimpleQueue[int] = SimpleQueue()

    def work() -> None:
        done.put(threading.get_ident())
        raise SystemExit

    thread = WorkerThread("test", work)
    assert thread.wake()
    first = done.get()
    assert thread.wake()
    assert done.get() == first != threading.get_ident()
    thread.close()
    assert not thread.wake()


def test_a_close_waits_for_the_work_that_has_begun_and_begins_no_other() -> None:
    begun, may_end, calls = threading.Event(), threading.Event(), []

    def work() -> None:
        calls.append(1)
        begun.set()
        may_end.wait(60)
        calls.append(2)

    thread = WorkerThread("test", work)
    assert thread.wake()
    begun.wait(60)
    assert thread.wake()
    closing = threading.Thread(target=thread.close)
    closing.start()
    while thread.wake():
        pass
    may_end.set()
    closing.join(60)
    assert calls == [1, 2]


def test_a_thread_that_never_worked_can_be_closed() -> None:
    thread = WorkerThread("test", lambda: None)
    thread.close()
    thread.close()
    assert not thread.wake()
