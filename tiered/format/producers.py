"""The state of a partition's idempotent producers (KIP-98), in memory and as stored. Pure.

A producer numbers its records, and within one partition its numbers only rise. So the highest number tells which records
the partition has. Their offsets are known for the last *runs*: records that are consecutive in the log.

A partition keeps at most `PRODUCERS_MAX` producers, and drops the least recently seen. When a segment is sealed, it also
drops producers that it has not seen for `PRODUCER_AGE_US`, by the append times of the log: a partition without appends
drops none. Pinned producers, whose repeats are certain to come, outlive both limits. Producers whose name is never used
again (`PASSING_EPOCH`) are dropped first, except for those seen last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from hashlib import blake2b

from .block import BlockHeader
from .segment_facts import ProducerState

PRODUCERS_MAX = 1024
LATEST_PARTS = 16
"""The producers seen last, one in this many, are never dropped: they may repeat an append at any moment."""
PRODUCER_AGE_US = 7 * 24 * 3600 * 1_000_000
RUNS_MAX = 64
"""The number of runs of each producer whose offsets a process keeps after it wrote or scanned them."""
RUNS_IN_ALL = 4096
"""The number of runs of all producers of a partition, of 200 bytes each; more than 64 producers share them."""

UNKNOWN_OFFSET = -1
SEQUENCE_MAX = 1 << 62
EPOCH_MAX = (1 << 32) - 1
PASSING_EPOCH = EPOCH_MAX
"""The epoch of a producer whose name is never used again, such as that of a remote client; it is dropped first."""
SPAN_MAX = (1 << 32) - 1
"""The largest difference between the first and the last number of a block."""


def producer_number(name: str) -> int:
    """Return the 63-bit number by which blocks and footers identify a producer.

    Two of n names collide with a probability of n² / 2⁶⁴: 5e-8 for a million producers of one partition.
    """
    digest = blake2b(name.encode(), digest_size=8, person=b"tiered.producer").digest()
    return int.from_bytes(digest, "little") >> 1


def states_before(states: Iterable[ProducerState], end_offset: int) -> tuple[ProducerState, ...]:
    """Return the states of producers for a log that is cut at an offset.

    No state claims more records than the log has. A producer whose last run begins after the end is left out, since its
    earlier numbers are not known.
    """
    cut = []
    for state in states:
        beyond = max(0, state.last_offset + 1 - end_offset)
        if not beyond:
            cut.append(state)
        elif beyond < state.run_length:
            last = state.last_sequence - beyond
            cut.append(
                replace(
                    state,
                    last_sequence=last,
                    last_offset=end_offset - 1,
                    run_length=state.run_length - beyond,
                )
            )
    return tuple(cut)


class Run:
    """Consecutive records of one producer; the range of their numbers is inclusive."""

    __slots__ = ("base_offset", "base_sequence", "end_offset", "last_sequence")

    def __init__(self, base_sequence: int, last_sequence: int, base_offset: int, end_offset: int) -> None:
        self.base_sequence = base_sequence
        self.last_sequence = last_sequence
        self.base_offset = base_offset
        self.end_offset = end_offset

    @property
    def dense(self) -> bool:
        """Whether the numbers have no gaps."""
        return self.last_sequence - self.base_sequence == self.end_offset - self.base_offset - 1

    def offset_of(self, sequence: int) -> int:
        """Return the offset of a number in the run; `UNKNOWN_OFFSET` for an inner number of a run with gaps."""
        if sequence == self.last_sequence:
            return self.end_offset - 1
        if sequence == self.base_sequence or self.dense:
            return self.base_offset + sequence - self.base_sequence
        return UNKNOWN_OFFSET


class ProducerHistory:
    """One producer: its newest epoch, its highest number (-1 for none), and its last runs, oldest first."""

    __slots__ = ("epoch", "last_append_us", "last_sequence", "runs", "stored")

    def __init__(self, epoch: int, last_sequence: int, last_append_us: int) -> None:
        self.epoch = epoch
        self.last_sequence = last_sequence
        self.last_append_us = last_append_us
        self.runs: deque[Run] = deque()
        # The last result of `state` until a change, since each commit needs the states of all producers.
        self.stored: ProducerState | None = None

    def offset_of(self, sequence: int) -> int:
        """Return the offset of a number up to the highest; `UNKNOWN_OFFSET` if its run was dropped."""
        for run in reversed(self.runs):
            if run.base_sequence <= sequence:
                return run.offset_of(sequence) if sequence <= run.last_sequence else UNKNOWN_OFFSET
        return UNKNOWN_OFFSET

    def add(
        self, base_sequence: int, last_sequence: int, base_offset: int, end_offset: int, runs_max: int
    ) -> None:
        """Add records whose numbers and offsets follow the earlier ones; keep the last runs."""
        last = self.runs[-1] if self.runs else None
        if last is not None and last.end_offset == base_offset and last.last_sequence + 1 == base_sequence:
            whole = last_sequence - base_sequence == end_offset - base_offset - 1
            if whole and last.dense:
                last.last_sequence, last.end_offset = last_sequence, end_offset
                self.last_sequence = last_sequence
                return
        self.runs.append(Run(base_sequence, last_sequence, base_offset, end_offset))
        while len(self.runs) > runs_max:
            self.runs.popleft()
        self.last_sequence = last_sequence

    def copy(self) -> ProducerHistory:
        """Return an independent copy."""
        twin = ProducerHistory(self.epoch, self.last_sequence, self.last_append_us)
        twin.runs.extend(
            Run(run.base_sequence, run.last_sequence, run.base_offset, run.end_offset) for run in self.runs
        )
        return twin

    def state(self, producer_id: int) -> ProducerState:
        """Return the state to store: with the last run, or only its last record if the run has gaps."""
        if self.stored is None:
            self.stored = self._state(producer_id)
        return self.stored

    def _state(self, producer_id: int) -> ProducerState:
        run = self.runs[-1] if self.runs else None
        length = 0 if run is None else run.end_offset - run.base_offset if run.dense else 1
        offset = UNKNOWN_OFFSET if run is None else run.end_offset - 1
        return ProducerState(producer_id, self.epoch, self.last_sequence, offset, length, self.last_append_us)


class ProducerTable:
    """The producers of one partition, least recently seen first. Not thread-safe.

    Attributes
    ----------
    pinned
        Numbers of producers that are not dropped, except the least recently seen of more than `PRODUCERS_MAX`.
    """

    __slots__ = ("_producers", "_snapshot", "pinned")

    def __init__(self, states: Iterable[ProducerState] = (), pinned: AbstractSet[int] = frozenset()) -> None:
        self.pinned = pinned
        self._producers: dict[int, ProducerHistory] = {}
        self._snapshot: tuple[ProducerState, ...] | None = None
        for state in states:
            history = self._producers[state.producer_id] = ProducerHistory(
                state.epoch, state.last_sequence, state.last_append_us
            )
            if state.run_length > 0:
                back = state.run_length - 1
                history.runs.append(
                    Run(
                        state.last_sequence - back, state.last_sequence,
                        state.last_offset - back, state.last_offset + 1,
                    )
                )  # fmt: skip

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> ProducerHistory | None:
        """Return the history of a producer, or None."""
        return self._producers.get(producer_id)

    def add(
        self, producer_id: int, epoch: int, base_sequence: int, last_sequence: int, base_offset: int,
        end_offset: int, append_us: int = 0,
    ) -> None:  # fmt: skip
        """Add appended records; records that were added before change nothing."""
        history = self._touch(producer_id, epoch, append_us)
        if last_sequence > history.last_sequence:
            runs_max = max(1, min(RUNS_MAX, RUNS_IN_ALL // len(self._producers)))
            history.add(base_sequence, last_sequence, base_offset, end_offset, runs_max)

    def begin(self, producer_id: int, epoch: int, next_sequence: int, append_us: int = 0) -> None:
        """Begin a new epoch, whose numbers go on at `next_sequence`."""
        history = self._touch(producer_id, epoch, append_us)
        history.last_sequence = max(history.last_sequence, next_sequence - 1)

    def undo_add(
        self, producer_id: int, offset: int, before: ProducerHistory | None, last_sequence: int
    ) -> None:
        """Undo the `add` of records from `offset` on; `before` and `last_sequence` are the history and number before it."""
        self._snapshot = None
        if before is None:
            self._producers.pop(producer_id, None)
            return
        self._producers[producer_id] = before
        before.stored = None
        before.last_sequence = last_sequence
        if before.runs and before.runs[-1].end_offset > offset:
            run = before.runs[-1]
            if run.base_offset == offset:
                before.runs.pop()
            else:
                run.last_sequence, run.end_offset = last_sequence, offset

    def add_block(self, block: BlockHeader) -> None:
        """Add a block or a mark of the log."""
        if block.producer_id < 0:
            return
        if block.record_count == 0:
            self.begin(block.producer_id, block.producer_epoch, block.base_sequence, block.append_us)
        else:
            self.add(
                block.producer_id, block.producer_epoch, block.base_sequence,
                block.base_sequence + block.last_sequence_delta, block.base_offset, block.end_offset,
                block.append_us,
            )  # fmt: skip

    def copy_from(self, producer_id: int, other: ProducerTable) -> None:
        """Replace the history of a producer by that in another table."""
        history = other._producers.get(producer_id)
        self._snapshot = None
        self._producers.pop(producer_id, None)
        if history is not None:
            self._producers[producer_id] = history.copy()
            self._drop_beyond_max()

    def drop_before(self, append_us: int) -> None:
        """Drop the producers that were last seen before a time, except pinned ones."""
        old = [number for number, history in self._producers.items() if history.last_append_us < append_us]
        for number in set(old) - self.pinned:
            self._snapshot = None
            del self._producers[number]

    def copy(self) -> ProducerTable:
        """Return an independent copy."""
        twin = ProducerTable(pinned=self.pinned)
        twin._producers = {number: history.copy() for number, history in self._producers.items()}
        return twin

    def snapshot(self) -> tuple[ProducerState, ...]:
        """Return the states of all producers, to store them."""
        if self._snapshot is None:
            self._snapshot = tuple(history.state(number) for number, history in self._producers.items())
        return self._snapshot

    def _touch(self, producer_id: int, epoch: int, append_us: int) -> ProducerHistory:
        """Return the history of a producer, after moving it to the end as the last one seen."""
        self._snapshot = None
        history = self._producers.get(producer_id)
        if history is None:
            history = ProducerHistory(epoch, -1, append_us)
        history.stored = None
        history.epoch = max(history.epoch, epoch)
        history.last_append_us = max(history.last_append_us, append_us)
        if producer_id in self._producers:
            # Ctrl-C cannot come between the two.
            del self._producers[producer_id]
        self._producers[producer_id] = history
        self._drop_beyond_max()
        return history

    def _drop_beyond_max(self) -> None:
        while len(self._producers) > PRODUCERS_MAX:
            earlier = list(self._producers)[: -max(1, PRODUCERS_MAX // LATEST_PARTS)]
            free = [number for number in earlier if number not in self.pinned] or earlier
            passing = (number for number in free if self._producers[number].epoch == PASSING_EPOCH)
            del self._producers[next(passing, free[0])]
