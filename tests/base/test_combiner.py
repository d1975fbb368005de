"""Work of many threads: each piece runs, alone, and its thread gets its result; Ctrl-C leaves nobody waiting."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.interrupts import Interrupted, interrupting
from tests.support.stores import in_threads
from tiered.base.combiner import Combiner, _Piece

CODES = {Combiner.run.__code__, Combiner._lead.__code__, _Piece.run.__code__, _Piece.wake.__code__}


@pytest.fixture
def switching() -> Iterator[None]:
    """Switch between threads all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_each_thread_gets_its_own_result(switching: None) -> None:
    lock = threading.RLock()
    combiner, inside, count, done = Combiner(lock), [0], [0], []

    def work(number: int) -> int:
        inside[0] += 1
        assert inside[0] == 1
        count[0] += 1
        inside[0] -= 1
        if number % 7 == 0:
            raise KeyError(number)
        return number

    def thread(first: int) -> None:
        for number in range(first, first + 300):
            try:
                assert combiner.run(lambda number=number: work(number)) == number  # type: ignore[misc]
            except KeyError as error:
                assert error.args == (number,)  # noqa: PT017 (whose error it is)
        done.append(first)

    def other() -> None:
        for _ in range(300):
            with lock:
                assert inside[0] == 0
                count[0] += 1

    in_threads(other, *(lambda first=first: thread(first) for first in range(0, 8000, 1000)))
    assert len(done) == 8
    assert count[0] == 300 * 9


def test_nothing_runs_while_another_holds_the_lock() -> None:
    lock = threading.RLock()
    combiner, done = Combiner(lock), threading.Event()
    thread = threading.Thread(target=lambda: combiner.run(done.set))
    with lock:
        thread.start()
        while not combiner._waiting:
            pass
        assert not done.wait(0.05)
    thread.join(5)
    assert done.is_set()


def test_a_piece_that_comes_after_the_last_look_is_run() -> None:
    class Closing:
        """A lock at whose release another thread comes."""

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            if late.ident is None:
                late.start()
                while not combiner._waiting:
                    pass

    combiner, done = Combiner(Closing()), threading.Event()
    late = threading.Thread(target=lambda: combiner.run(done.set), daemon=True)
    combiner.run(lambda: None)
    late.join(5)
    assert done.is_set()


def test_an_interrupt_anywhere_leaves_nobody_waiting() -> None:
    """Exhaustive: the thread that is interrupted leads, with the pieces of two others behind its own."""
    point = 0
    while interrupted_at(point):
        point += 1
    assert point > 8


def interrupted_at(point: int) -> bool:
    combiner, results = Combiner(threading.RLock()), []
    others = [
        threading.Thread(target=lambda at=at: results.append(combiner.run(lambda: at)), daemon=True)
        for at in range(2)
    ]

    def begin() -> None:
        """Let the others add their pieces while this thread leads."""
        if others[0].ident is None:
            for thread in others:
                thread.start()
            while len(combiner._waiting) < 3:
                pass

    with interrupting(CODES, point) as left, suppress(Interrupted):
        combiner.run(begin)
    started = [thread for thread in others if thread.ident is not None]
    for thread in started:
        thread.join(5)
    assert sorted(results) == list(range(len(started))), point
    assert combiner.run(lambda: 3) == 3
    return left[0] < 0
