"""An explicit-state explorer: every interleaving of actors that are ordinary Python code.

An actor is a greenlet. Whatever it shares with others it does through `World.step`, which hands a `Request` to the
scheduler and waits until that is chosen; between two steps it runs alone. A schedule is a row of choices: which
request takes effect next, and with which outcome. The search is depth first. A greenlet cannot be copied, so each
schedule is executed anew from the beginning, along the choices that led to the place where it branches off.

Two prunings, both sound for what is checked here, which is a property of states:

States
    A state is what is shared (the parts' `fingerprint`), the requests that are under way, the faults left, and for
    each process whose actors have not ended a hash over everything it was ever told, in order. Code that is told the
    same does the same, so this determines the actors' local variables. A state met again is not explored again.
    States are compared by 64 bits.
Sleep sets (Godefroid, 1996)
    Two neighbouring steps that do not touch the same key commute, so one order of them leads to every state behind
    both. Combined with the pruning of states as in his figure 5.2: a state remembers the sleep set under which it
    was explored, and what that left out is made up for where it is met with a smaller one.

Sleep sets drop transitions and no states, so a violation that shows in any reachable state is found.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID
from zlib import crc32

from greenlet import GreenletExit, getcurrent, greenlet

from tiered.errors import TieredError

OK = "ok"
END = "end"


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Which keys a step reads and writes; one that ends in ``/`` stands for all below it, ``/`` for everything."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    def conflicts(self, other: Footprint) -> bool:
        return (
            _meet(self.writes, other.writes)
            or _meet(self.writes, other.reads)
            or _meet(self.reads, other.writes)
        )


def _meet(left: tuple[str, ...], right: tuple[str, ...]) -> bool:
    return any(
        a == b or "/" in (a, b) or (a[-1] == "/" and b.startswith(a)) or (b[-1] == "/" and a.startswith(b))
        for a in left
        for b in right
    )


EVERYTHING = Footprint((), ("/",))


@dataclass(slots=True)
class Request:
    """One step that an actor, or the network, could take next.

    Attributes
    ----------
    outcomes
        `OK` first; each other one is a fault and costs one of the faults left.
    take
        Does it, with the outcome chosen, and returns what the actor is told.
    ready
        Whether it can be chosen now.
    """

    what: str
    footprint: Footprint
    take: Callable[[str], Any]
    outcomes: tuple[str, ...] = (OK,)
    ready: Callable[[], bool] = lambda: True


Label = tuple[str, str]


class World:
    """What one execution of a scenario consists of; see `explore`.

    Attributes
    ----------
    faults_left
        How many outcomes that are not `OK` may still be chosen.
    fingerprints
        Called at each state: what is shared, as something hashable.
    checks
        Called after each step; raise `Violation`.
    endings
        Called in order where every actor has come to its end.
    remembered
        Processes whose memory `endings` use; that of others is of no account once their actors have ended.
    """

    def __init__(self, faults: int = 0) -> None:
        self.faults_left = faults
        self.fingerprints: list[Callable[[], Hashable]] = []
        self.checks: list[Callable[[], None]] = []
        self.endings: list[Callable[[], None]] = []
        self.remembered: set[str] = set()
        self.underway: dict[str, Request] = {}
        self.histories: dict[str, int] = {}
        self.trace: list[str] = []
        self._actors: dict[str, greenlet] = {}
        self._process_of: dict[str, str] = {}
        self._told: dict[str, str] = {}
        self._names: dict[greenlet, str] = {}
        self._requests: dict[str, Request] = {}
        self._counts: dict[str, int] = {}
        self.exploring = False

    def actor(
        self,
        name: str,
        work: Callable[[], object],
        process: str | None = None,
        memory: Callable[[], Hashable] | None = None,
    ) -> None:
        """Add an actor; those of one process share memory, so their steps never commute.

        `memory` says what of the process its actors share; without it, they count as one that is told everything.
        """

        def run() -> None:
            try:
                work()
            except TieredError as error:
                raise Violation(f"{name} ended in {type(error).__name__}: {error}") from error

        body = greenlet(run)
        self._actors[name] = body
        self._names[body] = name
        self._process_of[name] = process or name
        self._told[name] = name if memory else process or name
        if memory:
            self.fingerprints.append(memory)

    @property
    def name(self) -> str:
        """Who is running: an actor, or "setup"."""
        return self._names.get(getcurrent(), "setup")

    @property
    def process(self) -> str:
        """The process of who is running."""
        return self._process_of.get(self.name, "setup")

    def step(self, request: Request) -> Any:
        """Wait until the request is chosen, and return what came of it; outside of actors it is done at once."""
        name = self.name
        if not self.exploring or name == "setup":
            return request.take(OK)
        # The main greenlet is the parent of every actor.
        answer = getcurrent().parent.switch(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def number(self) -> int:
        """Return 1, 2, 3 … for each actor by itself, so that names do not depend on the schedule."""
        name = self.name
        self._counts[name] = count = self._counts.get(name, 0) + 1
        return count

    def uuid(self) -> UUID:
        """Return an id that no other call returns, and the same one in each schedule that leads here."""
        return UUID(int=(crc32(self.name.encode()) << 32) | self.number())

    # -- for the search --------------------------------------------------------------------------

    def start(self) -> None:
        self.exploring = True
        for name in self._actors:
            self._resume(name)

    def _resume(self, name: str, *answer: Any) -> None:
        body = self._actors[name]
        request = body.switch(*answer)
        if body.dead:
            self._requests.pop(name, None)
        else:
            self._requests[name] = request

    def enabled(self) -> list[tuple[Label, Footprint]]:
        """Return every transition of this state, in an order that depends on nothing else."""
        found = []
        for name, request in (*self._requests.items(), *self.underway.items()):
            if not request.ready():
                continue
            process = (f"process:{self._process_of[name]}",) if name in self._actors else ()
            for outcome in request.outcomes:
                if outcome == OK:
                    print_ = Footprint(request.footprint.reads, request.footprint.writes + process)
                elif self.faults_left:
                    print_ = Footprint(
                        request.footprint.reads, (*request.footprint.writes, *process, "faults")
                    )
                else:
                    continue
                found.append(((name, outcome), print_))
        if not self._requests:
            found.append(((END, OK), EVERYTHING))
        elif not any(name in self._requests for (name, _), _ in found):
            raise Violation(f"deadlock: {', '.join(self._requests)} wait for ever")
        return found

    def take(self, label: Label) -> None:
        """Carry one transition out."""
        name, outcome = label
        if name == END:
            self.trace.append("the end")
            self.exploring = False
            try:
                for ending in self.endings:
                    ending()
            except TieredError as error:
                raise Violation(f"at the end: {type(error).__name__}: {error}") from error
            return
        request = self._requests[name] if name in self._actors else self.underway[name]
        self.trace.append(f"{name}: {request.what}" + ("" if outcome == OK else f"  ← {outcome}"))
        if outcome != OK:
            self.faults_left -= 1
        if name not in self._actors:
            request.take(outcome)
        else:
            try:
                answer = request.take(outcome)
            except TieredError as error:
                answer = error
            except OSError as error:
                answer = error
            process = self._told[name]
            told = answer if isinstance(answer, Hashable) else repr(answer)
            if isinstance(answer, Exception):
                told = type(answer).__name__
            self.histories[process] = hash((self.histories.get(process, 0), name, request.what, told))
            self._resume(name, answer)
        for check in self.checks:
            check()

    def state(self) -> int:
        """Return the fingerprint of everything."""
        alive = self.remembered | {self._told[name] for name in self._requests}
        return hash(
            (
                tuple(part() for part in self.fingerprints),
                tuple(sorted(item for item in self.histories.items() if item[0] in alive)),
                tuple(sorted(self._requests)),
                tuple(sorted(self.underway)),
                self.faults_left,
            )
        )

    def close(self) -> None:
        for body in self._actors.values():
            if not body.dead:
                body.throw(GreenletExit)


@dataclass(slots=True)
class Result:
    """What a search found.

    Attributes
    ----------
    schedules
        Executions: each a schedule of its own, to its end or to a state that was met before.
    ends
        Of these, those that came to the end of all actors, and the checks there.
    complete
        Whether nothing was left out.
    """

    schedules: int = 0
    ends: int = 0
    states: int = 0
    steps: int = 0
    depth_max: int = 0
    complete: bool = False
    violation: str = ""
    schedule: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = "\n".join(f"  {number:2d}  {line}" for number, line in enumerate(self.schedule, start=1))
        return (
            f"{self.violation}\n{lines}"
            if self.violation
            else f"{self.schedules} schedules, {self.states} states"
        )


@dataclass(slots=True)
class _Node:
    """A place on the way: what is still to be tried there, and what needs no trying."""

    todo: list[tuple[Label, Footprint]]
    sleep: dict[Label, Footprint]
    taken: tuple[Label, Footprint] | None = None

    def advance(self) -> bool:
        if self.taken is not None:
            self.sleep[self.taken[0]] = self.taken[1]
        self.taken = self.todo.pop(0) if self.todo else None
        return self.taken is not None

    def sleep_below(self) -> dict[Label, Footprint]:
        assert self.taken is not None
        footprint = self.taken[1]
        return {label: other for label, other in self.sleep.items() if not other.conflicts(footprint)}


@dataclass(slots=True)
class _Search:
    scenario: Callable[[World], None]
    faults: int
    reduce: bool
    visited: dict[int, frozenset[Label]] = field(default_factory=dict)
    path: list[_Node] = field(default_factory=list)
    result: Result = field(default_factory=Result)
    depth_limit: int = 1 << 30

    def arrive(self, world: World, sleep: dict[Label, Footprint]) -> bool:
        """Make the node of a new place; False where there is nothing to try."""
        enabled = world.enabled()
        if self.reduce:
            state = world.state()
            known = self.visited.get(state)
            if known is None:
                self.visited[state] = frozenset(sleep)
                todo = [item for item in enabled if item[0] not in sleep]
            else:
                todo = [item for item in enabled if item[0] in known and item[0] not in sleep]
                sleep = {label: item for label, item in sleep.items() if label in known}
                self.visited[state] = frozenset(sleep)
        else:
            todo = enabled
        node = _Node(todo, dict(sleep) if self.reduce else {})
        if not node.advance():
            return False
        self.path.append(node)
        return True

    def execute(self) -> None:
        """Run one schedule: along the path, then on by the first choices to the end or to a known state."""
        world = World(self.faults)
        result = self.result
        result.schedules += 1
        try:
            self.scenario(world)
            world.start()
            done = 0
            while True:
                if done == len(self.path):
                    if done >= self.depth_limit:
                        break
                    sleep = self.path[-1].sleep_below() if self.path and self.reduce else {}
                    if not self.arrive(world, sleep):
                        break
                taken = self.path[done].taken
                assert taken is not None
                world.take(taken[0])
                done += 1
                result.steps += 1
                if taken[0][0] == END:
                    result.ends += 1
                    break
            result.depth_max = max(result.depth_max, done)
        except Violation as violation:
            if not result.violation or len(world.trace) < len(result.schedule):
                result.violation, result.schedule = str(violation), tuple(world.trace)
                self.depth_limit = len(world.trace) - 1
                del self.path[len(world.trace) :]
        finally:
            world.close()

    def backtrack(self) -> bool:
        del self.path[self.depth_limit :]
        while self.path:
            if self.path[-1].advance():
                return True
            self.path.pop()
        return False


def explore(
    scenario: Callable[[World], None],
    *,
    faults: int = 0,
    schedules_max: int = 1_000_000,
    seconds_max: float = math.inf,
    after_violation: int = 0,
    reduce: bool = True,
) -> Result:
    """Execute a scenario under every schedule.

    Parameters
    ----------
    scenario
        Sets a world up and adds its actors.
    faults
        How many faults one schedule may have.
    schedules_max, seconds_max
        Where to stop; the result is not complete then.
    after_violation
        How many more schedules to try for a shorter one that breaks a promise.
    reduce
        False explores every schedule to its end, without any pruning.
    """
    search = _Search(scenario, faults, reduce)
    result = search.result
    limit, deadline = schedules_max, time.monotonic() + seconds_max
    while True:
        found = bool(result.violation)
        search.execute()
        if result.violation and not found:
            limit = min(limit, result.schedules + after_violation)
        if not search.backtrack():
            result.complete = not result.violation
            break
        if result.schedules >= limit or time.monotonic() > deadline:
            break
    result.states = len(search.visited)
    return result


def walk(scenario: Callable[[World], None], *, faults: int, schedules: int, seed: int = 0) -> Result:
    """Execute so many schedules that are drawn at random: no proof, but it goes where `explore` has no time to go."""
    result = Result()
    draw = random.Random(seed)
    for _ in range(schedules):
        world = World(faults)
        result.schedules += 1
        try:
            scenario(world)
            world.start()
            # Actors run in spurts, as they do in reality: a switch at every step seldom gets anybody anywhere.
            last, stickiness = "", draw.random()
            while world.exploring:
                enabled = [label for label, _ in world.enabled()]
                same = [label for label in enabled if label == (last, OK)]
                chosen = same[0] if same and draw.random() < stickiness else draw.choice(enabled)
                world.take(chosen)
                last = chosen[0]
                result.steps += 1
            result.ends += 1
        except Violation as violation:
            if not result.violation or len(world.trace) < len(result.schedule):
                result.violation, result.schedule = str(violation), tuple(world.trace)
        finally:
            world.close()
    return result
