"""What a store must hold, and may hold, after a crash at any moment of a run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(eq=False)
class Log:
    """One partition.

    Attributes
    ----------
    values
        Values by offset, from 0; those below the start offset are kept.
    ends
        Offsets at which a block ended.
    acknowledged
        End of what was promised to survive a power cut.
    shown
        End of what a reader was given: under ``sync=never`` it survives the death of the process only.
    start
        Lowest and highest start offset that is right.
    """

    values: list[Any] = field(default_factory=list)
    ends: set[int] = field(default_factory=lambda: {0})
    acknowledged: int = 0
    shown: int = 0
    start: tuple[int, int] = (0, 0)

    @property
    def end(self) -> int:
        return len(self.values)

    def close_block(self) -> None:
        """What is pending makes a block of its own."""
        self.ends.add(self.end)


@dataclass(eq=False)
class TopicModel:
    """One topic; a topic that is deleted and created again is another."""

    name: str
    logs: list[Log]
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """What holds of one partition at one moment."""

    acknowledged: int
    shown: int
    possible: int
    start: tuple[int, int]


Alternatives = tuple[tuple[TopicModel | None, tuple[Bounds, ...]], ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """What holds of a store at one moment: for each topic the states that are right, None for its absence."""

    created: bool
    topics: dict[str, Alternatives]


class Model:
    """The state of a store as a script of calls makes it, and how it was at each point of the journal.

    Parameters
    ----------
    position
        Length of the journal.
    """

    def __init__(self, position: Callable[[], int]) -> None:
        self._position = position
        self.created = False
        self.topics: dict[str, tuple[TopicModel | None, ...]] = {}
        self._moments: list[int] = []
        self._states: list[Expected] = []
        self.mark()

    def topic(self, name: str) -> TopicModel:
        (found,) = self.topics[name]
        assert found is not None
        return found

    def logs(self) -> list[Log]:
        """Every partition of every topic that is there for certain."""
        return [log for (topic,) in self.topics.values() if topic is not None for log in topic.logs]

    def expect(self, state: Expected) -> None:
        """Until the next mark, a crash must leave what one more crash before it had to."""
        self._moments, self._states = [self._position()], [state]

    def mark(self) -> None:
        """From here on, a crash must leave what holds now."""
        topics = {
            name: tuple((topic, _bounds(topic)) for topic in alternatives)
            for name, alternatives in self.topics.items()
        }
        position, state = self._position(), Expected(self.created, topics)
        if self._moments and self._moments[-1] == position:
            self._states[-1] = state
        else:
            self._moments.append(position)
            self._states.append(state)

    def at(self, index: int) -> Expected:
        """What a crash after `index` operations must leave."""
        return self._states[bisect_right(self._moments, index) - 1]


def _bounds(topic: TopicModel | None) -> tuple[Bounds, ...]:
    logs = topic.logs if topic is not None else []
    return tuple(Bounds(log.acknowledged, log.shown, log.end, log.start) for log in logs)


def survivor(
    name: str, alternatives: Alternatives, found: list[tuple[int, int, list[Any]]] | None, *, kill: bool
) -> TopicModel | None:
    """Return the state that was found, as what now holds for certain.

    Parameters
    ----------
    found
        Start, end and values of each partition; None where the topic is not there.
    kill
        Whether the process died and the operating system lived on.

    Raises
    ------
    Violation
        It is none of the alternatives.
    """
    problems = []
    for topic, bounds in alternatives:
        if topic is None or found is None:
            if topic is found is None:
                return None
            problems.append("the topic is missing" if found is None else "the topic is there")
            continue
        problem = "".join(
            _problem(log, bound, *part, kill=kill)
            for log, bound, part in zip(topic.logs, bounds, found, strict=True)
        )
        if not problem:
            logs = [
                Log(log.values[:end], {e for e in log.ends if e <= end}, end, end, (start, start))
                for log, (start, end, _) in zip(topic.logs, found, strict=True)
            ]
            return TopicModel(name, logs, topic.columns)
        problems.append(problem)
    raise Violation(f"topic {name!r}: {'; or: '.join(problems)}")


def _problem(log: Log, bounds: Bounds, start: int, end: int, values: list[Any], *, kill: bool) -> str:
    needed = max(bounds.acknowledged, bounds.shown) if kill else bounds.acknowledged
    if not bounds.start[0] <= start <= bounds.start[1]:
        return f"the log starts at {start}, not within {bounds.start}"
    if end < needed:
        return f"the log ends at {end}: {needed - end} records of {needed} are lost"
    if end > bounds.possible:
        return f"the log ends at {end}, but {bounds.possible} records were appended"
    if end not in log.ends:
        return f"the log ends at {end}, in the middle of a block (they end at {sorted(log.ends)})"
    wanted = log.values[start:end]
    if values != wanted:
        at = next((i for i, (a, b) in enumerate(zip(values, wanted, strict=False)) if a != b), -1)
        return f"{len(values)} records instead of {len(wanted)}, the first that differs is {start + at}"
    return ""
