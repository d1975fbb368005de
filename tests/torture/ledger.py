"""What must be in a store, by the journals of who wrote and read it, and what was found there before."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

import tiered
from tests.torture.payload import PASSING, PRODUCER, TOPICS, Id, id_of, texts

Place = tuple[str, int]
PARTITIONS = {**TOPICS, PASSING: 1}


@dataclass(frozen=True, slots=True)
class Intent:
    """Records that a thread was about to append."""

    topic: str
    partition: int
    life: int
    thread: int
    first: int
    count: int
    is_block: bool


@dataclass
class Ledger:
    """Every record of a store by place and offset, as long as it lives.

    Attributes
    ----------
    content
        What was found at each offset; it can never be anything else.
    acks
        What was acknowledged, by offset, and not looked for yet.
    somewhere
        What was acknowledged without an offset, and not looked for yet.
    ends
        End offsets of what was acknowledged.
    published
        End offsets up to which the bucket has everything.
    acknowledged, read, copied, dropped
        How many records were acknowledged in all, were given to readers, were looked at in the bucket and in restores; how
        many topics were deleted.
    resume
        Number of the first record of the producer that is not acknowledged.
    unheard
        Topics whose deletion was cut short: the bucket may have them still.
    """

    content: dict[Place, list[Id | None]] = field(default_factory=lambda: defaultdict(list))
    acks: dict[Place, dict[int, Id]] = field(default_factory=lambda: defaultdict(dict))
    somewhere: list[tuple[str, Id]] = field(default_factory=list)
    ends: dict[Place, int] = field(default_factory=lambda: defaultdict(int))
    starts: dict[Place, int] = field(default_factory=lambda: defaultdict(int))
    deletes: dict[Place, int] = field(default_factory=lambda: defaultdict(int))
    published: dict[Place, int] = field(default_factory=lambda: defaultdict(int))
    acknowledged: int = 0
    read: int = 0
    copied: int = 0
    dropped: int = 0
    resume: int = 0
    unheard: set[str] = field(default_factory=set)
    _intents: list[Intent] = field(default_factory=list)
    _saw: list[tuple[Place, int, list[str]]] = field(default_factory=list)
    _found: set[Id] = field(default_factory=set)
    _last: dict[tuple[int, int, Place], int] = field(default_factory=dict)
    _there: set[str] = field(default_factory=set)
    _dropping: set[str] = field(default_factory=set)

    def note(self, life: int, lines: list[list[str]]) -> None:
        """Take in a journal.

        Raises
        ------
        AssertionError
            It has an error in it.
        """
        for kind, *words in lines:
            if kind == "error":
                raise AssertionError(" ".join(words).replace("\\n", "\n"))
            if kind in ("pass", "report"):
                continue
            if kind in ("dropping", "dropped", "created"):
                self._note_topic(kind, words[0])
                continue
            place = (words[0], int(words[1]))
            if kind == "saw":
                self._saw.append((place, int(words[2]), words[3:]))
                continue
            numbers = [int(word) for word in words[2:]]
            if kind in ("intent", "ack", "all"):
                self._note_records(kind, place, life, *numbers)
                continue
            marks = {
                "end": self.ends,
                "published": self.published,
                "delete": self.deletes,
                "deleted": self.starts,
            }
            marks[kind][place] = max(marks[kind][place], numbers[-1])

    def _note_records(
        self, kind: str, place: Place, life: int, thread: int, first: int, count: int, last: int = 0
    ) -> None:
        life = 0 if thread == PRODUCER else life
        if kind == "intent":
            self._intents.append(Intent(*place, life, thread, first, count, bool(last)))
            return
        self.acknowledged += count
        if thread == PRODUCER:
            self.resume = max(self.resume, first + count)
        ids = [Id(life, thread, first + number) for number in range(count)]
        if kind == "ack":
            self.acks[place].update(enumerate(ids, last))
        else:
            self.somewhere += [(place[0], record) for record in ids]

    def _note_topic(self, kind: str, topic: str) -> None:
        self._there.discard(topic)
        self._dropping.discard(topic)
        if kind == "dropping":
            self._dropping.add(topic)
        elif kind == "dropped":
            self.dropped += 1
            self._forget(topic)
        else:
            self._there.add(topic)
            self.unheard.discard(topic)

    def _forget(self, topic: str) -> None:
        """Nothing of a topic that is deleted may come back: what has its name from here on begins anew."""
        for known in (self.content, self.acks, self.ends, self.starts, self.deletes, self.published):
            for place in [place for place in known if place[0] == topic]:
                del known[place]  # type: ignore[attr-defined]
        self._intents = [intent for intent in self._intents if intent.topic != topic]

    def check(self, store: tiered.Store) -> None:
        """Hold the whole store against everything known, and remember what was found.

        Raises
        ------
        AssertionError
        """
        topics = store.topics()
        fresh: dict[Id, tuple[Place, int]] = {}
        for name, partitions in PARTITIONS.items():
            if name not in topics:
                assert name not in self._there, f"topic {name} is gone"
                if name in self._dropping:
                    self._dropping.discard(name)
                    self.unheard.add(name)
                    self._forget(name)
                assert not any(self.content[name, p] or self.acks[name, p] for p in range(partitions))
                continue
            self._there.add(name)
            self._dropping.discard(name)
            scan = store.topic(name).scan()
            table = scan.to_arrow()
            # Taken after the scan; without a writer both are the same.
            bounds = store.topic(name).offsets()
            for partition, (start, end) in scan.offsets.items():
                # An expiry that the writer was asked for and did not live to see has moved the bucket's start alone:
                # a scan finds it there, and `offsets` asks no bucket.
                assert bounds[partition].start <= start
                assert bounds[partition].end == end
                rows = table.filter(pc.equal(table["partition"], partition))
                fresh |= self._partition((name, partition), rows, start, end)
        self._check_intents(fresh)
        self._check_somewhere()
        self._check_seen()
        self._intents.clear()
        self.somewhere.clear()
        self.acks.clear()

    def _partition(self, place: Place, rows: pa.Table, start: int, end: int) -> dict[Id, tuple[Place, int]]:
        check_dense(place, rows, start, end)
        assert self.starts[place] <= start <= max(self.deletes[place], self.starts[place]), (
            f"{place} starts at {start}; deleted up to {self.starts[place]}, asked for {self.deletes[place]}"
        )
        self.starts[place] = start
        known = self.content[place]
        assert end >= len(known), f"{place} ends at {end}; {len(known)} records were there before"
        assert end >= self.ends[place], f"{place} ends at {end}; {self.ends[place]} was acknowledged"
        found = [id_of(text) for text in texts(rows)]
        for offset, record in enumerate(found, start):
            if offset >= len(known):
                break
            if known[offset] is None:
                known[offset] = record  # deleted on a disk that was lost before the bucket heard of it
            elif known[offset] != record:
                raise AssertionError(f"{place}@{offset} was {known[offset]} and is {record}")
        lost = {
            offset: record
            for offset, record in self.acks[place].items()
            if offset >= start and (offset >= end or found[offset - start] != record)
        }
        assert not lost, (
            f"{place} from {start} to {end} lost {len(lost)} acknowledged records: {min(lost.items())}"
        )
        fresh: dict[Id, tuple[Place, int]] = {}
        for offset in range(len(known), end):
            record = found[offset - start] if offset >= start else None
            known.append(record)
            if record is None:
                continue  # deleted before anybody looked
            assert record not in self._found, f"{place}@{offset}: {record} is there twice"
            self._found.add(record)
            fresh[record] = (place, offset)
            before = self._last.get((record.life, record.thread, place), -1)
            assert record.number > before, f"{place}@{offset}: {record} follows number {before} of its thread"
            self._last[record.life, record.thread, place] = record.number
        return fresh

    def _check_intents(self, fresh: dict[Id, tuple[Place, int]]) -> None:
        """Nothing is there that nobody appended, and a block is there wholly or not at all."""
        left = dict(fresh)
        for intent in self._intents:
            ids = [Id(intent.life, intent.thread, intent.first + number) for number in range(intent.count)]
            places = [left.pop(record) for record in ids if record in left]
            assert all(place[0] == intent.topic for place, _ in places), f"{intent} is in another topic"
            if intent.partition >= 0:
                assert all(place[1] == intent.partition for place, _ in places), f"{intent} is elsewhere"
            deleted = intent.partition >= 0 and self.starts[intent.topic, intent.partition] > 0
            if intent.is_block and places and not (deleted and len(places) < intent.count):
                assert len(places) == intent.count, f"{len(places)} records of {intent}"
                first = places[0][1]
                assert [offset for _, offset in places] == list(range(first, first + intent.count))
        assert not left, f"nobody appended {min(left)}"

    def _check_somewhere(self) -> None:
        for topic, record in self.somewhere:
            deleted = any(self.starts[topic, partition] for partition in range(PARTITIONS[topic]))
            assert record in self._found or deleted, f"{topic} lost {record}, which was acknowledged"

    def _check_seen(self) -> None:
        """What a reader was given is there for good (promise P2)."""
        for place, first, given in self._saw:
            known = self.content[place]
            assert first + len(given) <= len(known), f"a reader saw {place} up to {first + len(given)}"
            for offset, text in enumerate(given, first):
                record = known[offset]
                assert record is None or record == id_of(text), f"a reader saw {text!r} at {place}@{offset}"
            self.read += len(given)
        self._saw.clear()

    def check_copy(self, store: tiered.Store) -> dict[Place, int]:
        """Hold a bucket alone, or what was restored from it, against what was found on the disk.

        It has everything that was published, of each log a range without a hole, and nothing else.

        Returns
        -------
        dict
            The end offsets, of the topics that are there.

        Raises
        ------
        AssertionError
        """
        ends: dict[Place, int] = {}
        topics = store.topics()
        for name, partitions in PARTITIONS.items():
            if name in self.unheard:
                continue
            ranges = store.topic(name).offsets() if name in topics else {}
            table = store.topic(name).scan().to_arrow() if name in topics else None
            for place in ((name, partition) for partition in range(partitions)):
                _, start, end = ranges.get(place[1], (0, 0, 0))
                known = self.content[place]
                assert self.published[place] <= end <= len(known), (
                    f"{place} ends at {end}; published were {self.published[place]}, the disk had {len(known)}"
                )
                assert start <= max(self.deletes[place], self.starts[place]), f"{place} starts at {start}"
                if table is None:
                    continue
                ends[place] = end
                rows = table.filter(pc.equal(table["partition"], place[1]))
                check_dense(place, rows, start, end)
                found = [id_of(text) for text in texts(rows)]
                wrong = [
                    (start + number, record, there)
                    for number, (record, there) in enumerate(zip(known[start:end], found, strict=True))
                    if record not in (None, there)
                ]
                assert not wrong, f"{place}: offset, what was appended, what is there: {wrong[0]}"
                self.copied += len(found)
        return ends

    def restored(self, ends: dict[Place, int]) -> None:
        """Forget what was on the lost disk alone: everything from these offsets on, and what was deleted there."""
        self.starts.clear()
        self.ends.clear()
        self._there = {topic for topic, _ in ends}
        for place, known in self.content.items():
            lost = known[ends.get(place, 0) :]
            del known[ends.get(place, 0) :]
            numbers = [record.number for record in lost if record is not None and record.thread == PRODUCER]
            self.resume = min([self.resume, *numbers])
        self._found.clear()
        self._last.clear()
        for place, known in self.content.items():
            for record in filter(None, known):
                self._found.add(record)
                self._last[record.life, record.thread, place] = record.number


def check_dense(place: Place, rows: pa.Table, start: int, end: int) -> None:
    """Each offset from `start` to `end` is there once, in order."""
    found = rows["offset"].to_pylist()
    if found != list(range(start, end)):
        after = [
            f"{right} after {left}" for left, right in pairwise([start - 1, *found]) if right != left + 1
        ]
        raise AssertionError(f"{place} from {start} to {end}: {len(found)} records, {after[:3]}")
