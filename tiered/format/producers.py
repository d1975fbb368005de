"""What a partition remembers of its idempotent producers (KIP-98), in memory and as it is stored. Pure.

A producer numbers its records, and the numbers of what one partition holds of it only rise. So the highest number
says which records are there; where they are is known of its last *runs*: stretches of records that lie one after
the other in the log.

The least recently seen producers are forgotten beyond `PRODUCERS_MAX` a partition, and, whenever a segment is
sealed, those that the partition has not heard of for `PRODUCER_AGE_US`, by the append times of the log itself: a
partition in which nobody appends forgets nobody. Those whose repeat is bound to come are pinned, and outlive both;
those whose name nobody will use again (`PASSING_EPOCH`) make room first, but for the last that were seen.
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
"""One in so many of the producers, those seen last, makes no room: what they sent may be sent again at any moment."""
PRODUCER_AGE_US = 7 * 24 * 3600 * 1_000_000
RUNS_MAX = 64
"""Of so many stretches of each producer the offsets are remembered, by the process that wrote or scanned them."""
RUNS_IN_ALL = 4096
"""Shared by the producers of a partition: of more than 64, each keeps fewer stretches. 200 bytes each."""

UNKNOWN_OFFSET = -1
SEQUENCE_MAX = 1 << 62
EPOCH_MAX = (1 << 32) - 1
PASSING_EPOCH = EPOCH_MAX
"""Of a producer whose name nobody will use again, as a remote client's own: such are forgotten before others."""
SPAN_MAX = (1 << 32) - 1
"""So far apart are the first and the last number of a block at most."""


def producer_number(name: str) -> int:
    """Return the 63 bits by which blocks and footers call a producer.

    Two of n names share a number with a probability of n² / 2⁶⁴: 5e-8 for a million producers of one partition.
    """
    digest = blake2b(name.encode(), digest_size=8, person=b"tiered.producer").digest()
    return int.from_bytes(digest, "little") >> 1


def states_before(states: Iterable[ProducerState], end_offset: int) -> tuple[ProducerState, ...]:
    """Return what is known of the records before an offset, for a log that ends there.

    Nobody is said to have more than there is. Where a producer's last run begins after the end, what it had
    before is not known: it is left out.
    """
    found = []
    for state in states:
        beyond = max(0, state.last_offset + 1 - end_offset)
        if not beyond:
            found.append(state)
        elif beyond < state.run_length:
            last = state.last_sequence - beyond
            found.append(
                replace(
                    state,
                    last_sequence=last,
                    last_offset=end_offset - 1,
                    run_length=state.run_length - beyond,
                )
            )
    return tuple(found)


class Run:
    """Records of one producer that lie one after the other; both ends of the numbers are inclusive."""

    __slots__ = ("base_offset", "base_sequence", "end_offset", "last_sequence")

    def __init__(self, base_sequence: int, last_sequence: int, base_offset: int, end_offset: int) -> None:
        self.base_sequence = base_sequence
        self.last_sequence = last_sequence
        self.base_offset = base_offset
        self.end_offset = end_offset

    @property
    def dense(self) -> bool:
        """Whether no number between the ends is missing."""
        return self.last_sequence - self.base_sequence == self.end_offset - self.base_offset - 1

    def offset_of(self, sequence: int) -> int:
        """Return the offset of a number in it; `UNKNOWN_OFFSET` where only the ends are known."""
        if sequence == self.last_sequence:
            return self.end_offset - 1
        if sequence == self.base_sequence or self.dense:
            return self.base_offset + sequence - self.base_sequence
        return UNKNOWN_OFFSET


class Known:
    """One producer: the newest epoch, the highest number (-1: none), and its last runs, oldest first."""

    __slots__ = ("epoch", "last_append_us", "last_sequence", "runs", "stored")

    def __init__(self, epoch: int, last_sequence: int, last_append_us: int) -> None:
        self.epoch = epoch
        self.last_sequence = last_sequence
        self.last_append_us = last_append_us
        self.runs: deque[Run] = deque()
        # What `state` returned last, until something changes: a commit asks for those of all producers.
        self.stored: ProducerState | None = None

    def offset_of(self, sequence: int) -> int:
        """Return where a number lies that is not above the highest; `UNKNOWN_OFFSET` where that is forgotten."""
        for run in reversed(self.runs):
            if run.base_sequence <= sequence:
                return run.offset_of(sequence) if sequence <= run.last_sequence else UNKNOWN_OFFSET
        return UNKNOWN_OFFSET

    def add(
        self, base_sequence: int, last_sequence: int, base_offset: int, end_offset: int, runs_max: int
    ) -> None:
        """Take note of records that follow the ones before in both number and offset; keep the last runs."""
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

    def copy(self) -> Known:
        """Return one that goes on by itself."""
        twin = Known(self.epoch, self.last_sequence, self.last_append_us)
        twin.runs.extend(
            Run(run.base_sequence, run.last_sequence, run.base_offset, run.end_offset) for run in self.runs
        )
        return twin

    def state(self, producer_id: int) -> ProducerState:
        """Return what is stored of it: of its runs the last, or its last record where numbers are missing in it."""
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
        Numbers of producers that are not forgotten; of more than `PRODUCERS_MAX`, the least recently seen are.
    """

    __slots__ = ("_known", "_snapshot", "pinned")

    def __init__(self, states: Iterable[ProducerState] = (), pinned: AbstractSet[int] = frozenset()) -> None:
        self.pinned = pinned
        self._known: dict[int, Known] = {}
        self._snapshot: tuple[ProducerState, ...] | None = None
        for state in states:
            known = self._known[state.producer_id] = Known(
                state.epoch, state.last_sequence, state.last_append_us
            )
            if state.run_length > 0:
                back = state.run_length - 1
                known.runs.append(
                    Run(
                        state.last_sequence - back, state.last_sequence,
                        state.last_offset - back, state.last_offset + 1,
                    )
                )  # fmt: skip

    def __len__(self) -> int:
        return len(self._known)

    def get(self, producer_id: int) -> Known | None:
        """Return what is known of a producer."""
        return self._known.get(producer_id)

    def add(
        self, producer_id: int, epoch: int, base_sequence: int, last_sequence: int, base_offset: int,
        end_offset: int, append_us: int = 0,
    ) -> None:  # fmt: skip
        """Take note of records that were appended; of what is known already, nothing changes."""
        known = self._seen(producer_id, epoch, append_us)
        if last_sequence > known.last_sequence:
            runs_max = max(1, min(RUNS_MAX, RUNS_IN_ALL // len(self._known)))
            known.add(base_sequence, last_sequence, base_offset, end_offset, runs_max)

    def begin(self, producer_id: int, epoch: int, next_sequence: int, append_us: int = 0) -> None:
        """Take note of a new epoch, in which the numbers go on at `next_sequence`."""
        known = self._seen(producer_id, epoch, append_us)
        known.last_sequence = max(known.last_sequence, next_sequence - 1)

    def take_back(self, producer_id: int, offset: int, before: Known | None, last_sequence: int) -> None:
        """Undo the `add` of the one record at `offset`; `before` and its highest number are as they were then."""
        self._snapshot = None
        if before is None:
            self._known.pop(producer_id, None)
            return
        self._known[producer_id] = before
        before.stored = None
        before.last_sequence = last_sequence
        if before.runs and before.runs[-1].end_offset == offset + 1:
            run = before.runs[-1]
            if run.base_offset == offset:
                before.runs.pop()
            else:
                run.last_sequence, run.end_offset = last_sequence, offset

    def note(self, block: BlockHeader) -> None:
        """Take note of a block, or of a mark, that is in the log."""
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

    def take(self, producer_id: int, other: ProducerTable) -> None:
        """Know of a producer what another table knows."""
        known = other._known.get(producer_id)
        self._snapshot = None
        self._known.pop(producer_id, None)
        if known is not None:
            self._known[producer_id] = known.copy()
            self._forget_beyond_max()

    def forget_before(self, append_us: int) -> None:
        """Forget the producers that were last heard of before a time, but for pinned ones."""
        old = [number for number, known in self._known.items() if known.last_append_us < append_us]
        for number in set(old) - self.pinned:
            self._snapshot = None
            del self._known[number]

    def copy(self) -> ProducerTable:
        """Return a table that goes on from here by itself."""
        twin = ProducerTable(pinned=self.pinned)
        twin._known = {number: known.copy() for number, known in self._known.items()}
        return twin

    def snapshot(self) -> tuple[ProducerState, ...]:
        """Return what is stored of all of them."""
        if self._snapshot is None:
            self._snapshot = tuple(known.state(number) for number, known in self._known.items())
        return self._snapshot

    def _seen(self, producer_id: int, epoch: int, append_us: int) -> Known:
        """Return a producer, as the one that was seen last."""
        self._snapshot = None
        known = self._known.get(producer_id)
        if known is None:
            known = Known(epoch, -1, append_us)
        known.stored = None
        known.epoch = max(known.epoch, epoch)
        known.last_append_us = max(known.last_append_us, append_us)
        if producer_id in self._known:
            # Ctrl-C cannot come between the two.
            del self._known[producer_id]
        self._known[producer_id] = known
        self._forget_beyond_max()
        return known

    def _forget_beyond_max(self) -> None:
        while len(self._known) > PRODUCERS_MAX:
            earlier = list(self._known)[: -max(1, PRODUCERS_MAX // LATEST_PARTS)]
            free = [number for number in earlier if number not in self.pinned] or earlier
            passing = (number for number in free if self._known[number].epoch == PASSING_EPOCH)
            del self._known[next(passing, free[0])]
