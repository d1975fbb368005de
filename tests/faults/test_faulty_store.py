"""Every operation on the bucket, failing in every way, one at a time and in pairs: nothing is lost or doubled."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.faulty_life import check_published_once, live
from tests.faults.workload import Violation
from tests.support.budget import LONG_RUN, rounds, scaled, seconds_of
from tests.support.faulty_store import FAULTS, Operation


@pytest.fixture(scope="module")
def operations(at_once: pytest.MonkeyPatch) -> list[Operation]:
    """The operations of the script when nothing fails."""
    life, faulty = live({})
    assert (life.errors, life.failures) == ([], [])
    return faulty.operations


def of_what(key: str) -> str:
    """The kind of object that a key is of."""
    return "probe" if key.startswith("probe/") else re.sub("[0-9a-f-]{36,}", "", key.rpartition("/")[2])


def singles(operations: list[Operation]) -> list[tuple[int, str]]:
    return [(number, kind) for number, asked in enumerate(operations) for kind in FAULTS[asked.verb]]


def some_singles(operations: list[Operation]) -> list[tuple[int, str]]:
    """One operation of each verb on each kind of object, for each fault; another one for each fault."""
    places: dict[tuple[str, str], list[int]] = {}
    for number, asked in enumerate(operations):
        places.setdefault((asked.verb, of_what(asked.key)), []).append(number)
    return [
        (numbers[(index + 1) * len(numbers) // (len(FAULTS[verb]) + 1)], kind)
        for (verb, _), numbers in places.items()
        for index, kind in enumerate(FAULTS[verb])
    ]


def fewest(operations: list[Operation], faults: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Those that together still have each fault of each verb, and each verb on each kind of object."""
    kept: list[tuple[int, str]] = []
    seen: set[tuple[str, str]] = set()
    # In this order the first fault of one kind of object is not that of the next one.
    for number, kind in sorted(faults, key=lambda fault: (fault[0] * 7) % 101):
        asked = operations[number]
        new = {(asked.verb, kind), (asked.verb, of_what(asked.key))} - seen
        if new:
            kept.append((number, kind))
            seen |= new
    return kept


def strike(faults: list[tuple[int, str]], struck: Counter[str], kind: str = "memory") -> None:
    """Live once with each fault; every life must hold."""
    found = []
    for number, fault in faults:
        try:
            _, faulty = live({number: fault}, kind)
        except Violation as error:
            found.append(str(error))
        else:
            struck.update(faulty.struck)
    assert found == []


def test_the_script_covers_every_kind_of_object_and_operation(operations: list[Operation]) -> None:
    """What is never asked for cannot fail: pages, data, heads and documents are all written and read."""
    asked = {(item.verb, item.key.rpartition("/")[2].partition(".")[2]) for item in operations}
    assert {("put", "json"), ("put", "json.zst"), ("get", "json.zst"), ("upload", "parquet")} <= asked
    assert {("get_range", "parquet"), ("stat", "parquet"), ("folders", "")} <= asked


@pytest.mark.extended
def test_a_fault_of_any_kind_loses_and_doubles_nothing(
    operations: list[Operation], struck: Counter[str]
) -> None:
    """For each verb, each kind of object and each fault: after every step the model, the disk and the bucket agree."""
    chosen = some_singles(operations)
    strike(chosen if LONG_RUN else fewest(operations, chosen), struck)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_many_single_faults(operations: list[Operation], struck: Counter[str], kind: str) -> None:
    """Every operation of the script may fail in every way: as many as there is time for, others at every run."""
    faults = singles(operations)
    for number, dice in enumerate(rounds(seconds_of(0.06, 2))):
        if number == 0:
            dice.shuffle(faults)
        chosen, faults = faults[:20], faults[20:]
        strike(chosen, struck, kind)
        if not faults:
            break


def check_several_faults(operations: list[Operation], struck: Counter[str], data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 4))
    # Close to each other now and then: the second fault then strikes what recovers from the first.
    first = data.draw(st.integers(0, len(operations) - 1))
    gaps = data.draw(
        st.lists(st.one_of(st.integers(1, 6), st.integers(1, 60)), min_size=count, max_size=count)
    )
    numbers = [first + sum(gaps[:index]) for index in range(count)]
    every = sorted({kind for kinds in FAULTS.values() for kind in kinds})
    chosen = [
        data.draw(st.sampled_from(FAULTS[operations[number].verb] if number < len(operations) else every))
        for number in numbers
    ]
    _, faulty = live(dict(zip(numbers, chosen, strict=True)))
    struck.update(faulty.struck)


@pytest.mark.extended
@pytest.mark.parametrize("examples", [7, pytest.param(scaled(200), marks=pytest.mark.slow, id="many")])
def test_several_faults_lose_and_double_nothing(
    operations: list[Operation], struck: Counter[str], examples: int
) -> None:
    """Two to four faults, each at any place and of any kind."""

    @settings(max_examples=examples)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        check_several_faults(operations, struck, data)

    check()


@pytest.mark.extended
def test_a_commit_is_published_once(operations: list[Operation], struck: Counter[str]) -> None:
    """Unknown is not failed (P10): no claim is raised twice, no change is made again on top of itself."""
    check_published_once(operations, struck)
