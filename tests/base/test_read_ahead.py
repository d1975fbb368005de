"""Items made ahead on a thread: the same ones, in order, so many and no more, and nothing left behind."""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from itertools import count

import pytest

from tests.support.interrupts import Interrupted, interrupting
from tiered.base import read_ahead as ahead
from tiered.base.read_ahead import read_ahead


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "tiered-read-ahead"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
def test_the_items_come_in_their_order(count: int) -> None:
    assert list(read_ahead(range(count), 2)) == list(range(count))
    assert threads() == []


def test_few_are_made_in_advance_and_the_rest_only_when_they_are_wanted() -> None:
    made: list[int] = []
    changed = threading.Condition()

    def items():
        for number in range(100):
            with changed:
                made.append(number)
                changed.notify()
            yield number

    with closing(read_ahead(items(), 2)) as ahead:
        for number in range(10):
            assert next(ahead) == number
            assert len(made) <= number + 5
        # Two wait, and one that is made waits for its place.
        with changed:
            assert changed.wait_for(lambda: len(made) >= 12, timeout=30)
    assert threads() == []
    assert len(made) < 20


def test_an_error_is_raised_in_its_place() -> None:
    def items():
        yield from range(5)
        raise KeyError("five")

    got: list[int] = []
    with pytest.raises(KeyError, match="five"):
        got.extend(read_ahead(items()))
    assert got == [0, 1, 2, 3, 4]
    assert threads() == []


def test_closing_ends_the_items_and_the_thread() -> None:
    ended = threading.Event()

    def items():
        try:
            yield from range(1_000_000)
        finally:
            ended.set()

    source = items()
    with closing(read_ahead(source)) as ahead:
        for _ in range(5):
            next(ahead)
    assert threads() == []
    source.close()
    assert ended.is_set()


def test_ctrl_c_leaves_no_thread_behind() -> None:
    """Also while the thread begins: one that waits for room for ever would keep the process from ending."""
    codes = {ahead._items_from_thread.__code__, threading.Thread.start.__code__}
    for point in count():
        with (
            interrupting(codes, point) as left,
            suppress(Interrupted),
            closing(read_ahead(range(8))) as items,
        ):
            list(items)
        for thread in threading.enumerate():
            if thread.name == "tiered-read-ahead" and thread.ident is not None:
                thread._started.wait()  # type: ignore[attr-defined]
                thread.join(timeout=10)
                assert not thread.is_alive(), f"at point {point}"
        if left[0] != -1:
            break
    assert point > 20
