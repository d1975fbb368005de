"""The explorer itself: it tries every interleaving, its prunings lose no state, and it finds known races."""

from __future__ import annotations

from math import comb

import pytest

from tests.protocol.explorer import Footprint, Request, Violation, World, explore


def counters(world: World, keys: str, steps: int) -> list[tuple[str, ...]]:
    """Actors that write down in which order they moved; each touches a key of its own, or all the same."""
    order: list[str] = []
    for name, key in zip("abcd", keys, strict=False):

        def work(name: str = name, key: str = key) -> None:
            for number in range(steps):
                world.step(
                    Request(f"{name}{number}", Footprint((), (key,)), lambda _, name=name: order.append(name))
                )

        world.actor(name, work)
    return order


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_without_pruning_every_interleaving_is_executed_once(steps: int) -> None:
    seen: set[str] = set()

    def scenario(world: World) -> None:
        order = counters(world, "xx", steps)
        world.endings.append(lambda: seen.add("".join(order)))

    result = explore(scenario, reduce=False)
    assert result.complete
    assert result.schedules == result.ends == len(seen) == comb(2 * steps, steps)


def test_steps_that_commute_are_executed_in_one_order_and_every_state_is_reached() -> None:
    """Three actors of three steps on keys of their own: 1,680 orders, 64 states, one schedule to the end."""
    states: set[tuple[int, ...]] = set()

    def scenario(world: World) -> None:
        order = counters(world, "xyz", 3)
        world.fingerprints.append(lambda: tuple(order.count(name) for name in "abc"))
        world.checks.append(lambda: states.add(tuple(order.count(name) for name in "abc")))

    result = explore(scenario)
    assert result.complete
    assert result.ends == 1
    assert len(states) == 4**3 - 1  # the first is no outcome of a step
    assert result.schedules < 40


@pytest.mark.parametrize("reduce", [True, False])
def test_a_lost_update_is_found(reduce: bool) -> None:
    def scenario(world: World) -> None:
        cell = [0]

        def work() -> None:
            seen = world.step(Request("read", Footprint(("x",)), lambda _: cell[0]))
            world.step(Request("write", Footprint((), ("x",)), lambda _: cell.__setitem__(0, seen + 1)))

        def check() -> None:
            if cell != [2]:
                raise Violation("an update was lost")

        world.actor("a", work)
        world.actor("b", work)
        world.fingerprints.append(lambda: cell[0])
        world.endings.append(check)

    result = explore(scenario, reduce=reduce)
    assert result.violation == "an update was lost"
    assert not result.complete
    assert result.schedule[-1] == "the end"
    assert len(result.schedule) == 5


@pytest.mark.parametrize("seed", range(12))
def test_pruning_reaches_the_same_ends_as_trying_everything(seed: int) -> None:
    """Random programs over two keys, with answers that steer what is done next, and faults."""

    def ends(reduce: bool) -> tuple[set[object], int]:
        found: set[object] = set()

        def scenario(world: World) -> None:
            cells = {"x": 0, "y": 0}
            world.fingerprints.append(lambda: tuple(cells.items()))
            for number, name in enumerate("abc"):

                def work(number: int = number) -> None:
                    value = number
                    for step in range(2 if number < 2 else 1):
                        turn = (seed * 31 + number * 7 + step * 3 + value) % 11
                        key = "xy"[turn % 2]

                        def take(outcome: str, key: str = key, turn: int = turn, value: int = value) -> int:
                            if turn % 3 and outcome == "ok":
                                cells[key] = cells[key] * 3 + value + turn
                            return cells[key] if outcome == "ok" else -1

                        print_ = Footprint((), (key,)) if turn % 3 else Footprint((key,))
                        value = world.step(Request(f"{key}{turn}", print_, take, ("ok", "fault")))

                world.actor(name, work)
            world.endings.append(lambda: found.add((tuple(cells.items()), world.faults_left)))

        result = explore(scenario, faults=1, reduce=reduce)
        assert result.complete
        return found, result.schedules

    pruned, few = ends(reduce=True)
    everything, many = ends(reduce=False)
    assert pruned == everything
    assert few < many


def test_actors_that_wait_for_each_other_are_found() -> None:
    def scenario(world: World) -> None:
        held: set[str] = set()

        def work(first: str, second: str) -> None:
            for lock in (first, second):
                world.step(
                    Request(
                        f"lock {lock}",
                        Footprint((), (lock,)),
                        lambda _, lock=lock: held.add(lock),
                        ready=lambda lock=lock: lock not in held,
                    )
                )
            held.difference_update((first, second))

        world.actor("a", lambda: work("x", "y"))
        world.actor("b", lambda: work("y", "x"))
        world.fingerprints.append(lambda: tuple(sorted(held)))

    assert explore(scenario).violation.startswith("deadlock")
