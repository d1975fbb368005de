"""Open what a crash left, and hold it against what must be there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

import tiered
from tests.support.clock import Clock
from tests.support.disk_model import (
    EVERYTHING,
    NAMES,
    NOTHING,
    Directory,
    Disk,
    Image,
    Loss,
    Put,
    Unlink,
    some,
)
from tests.support.recorder import Recorder
from tests.support.store_actor import Actor
from tests.support.stores import EVICT_US, OFFLOAD_US, let_go
from tests.support.topic_model import Expected, Violation
from tiered.format.manifest import covers
from tiered.format.manifest_codec import decode_head
from tiered.format.segment import decode_segment_header
from tiered.warm.partition_directory import START_FILE, SegmentName


@dataclass(frozen=True, slots=True)
class Crash:
    """One crash: after `index` operations of a run, what it left, and what must be there."""

    index: int
    loss: Loss
    image: Image
    expected: Expected
    late: Put | None

    def __str__(self) -> str:
        return f"crash after operation {self.index}, {self.loss.name}, late: {self.late and self.late.key}"


@dataclass
class Count:
    """What was looked at: crash points, crashes (a point and a loss), states that differ, recoveries crashed again."""

    crash_points: int = 0
    crashes: int = 0
    states: int = 0
    second_crashes: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """Which crashes are looked at.

    Attributes
    ----------
    seeds
        Random parts of each crash; None where the process dies alone.
    salt
        What the random parts are drawn from, besides the place of the crash.
    stride, first, begin
        Every how many operations, from which on, none before.
    pass_every
        At how many of these points a tiering pass follows the recovery.
    again_every
        At which points (multiples of it) crashes in the recovery are looked at; 0 for none.
    """

    seeds: int | None = 1
    salt: int = 0
    stride: int = 1
    first: int = 0
    begin: int = 0
    pass_every: int = 1
    again_every: int = 0

    def losses(self, index: int) -> list[Loss]:
        """The variants of one crash: all, nothing, names alone, and random parts."""
        if index < self.begin or index % self.stride != self.first % self.stride:
            return []
        if self.seeds is None:
            return [EVERYTHING]
        return [
            EVERYTHING,
            NOTHING,
            NAMES,
            *(some(f"{index}.{seed + self.salt}") for seed in range(self.seeds)),
        ]

    def tiers(self, index: int) -> bool:
        return (index // self.stride) % self.pass_every == 0

    def again(self, index: int) -> bool:
        return self.again_every > 0 and (index // self.stride) % self.again_every == self.again_every // 2


def crashes(actor: Actor, sample: Sample, count: Count) -> Iterator[Crash]:
    """Yield every crash of a run, but those whose image and expectation are those of another."""
    seen: set[tuple[int, int, bool]] = set()
    journal = actor.recorder.journal
    last = -1
    for index, loss, image in actor.recorder.crashes(sample.losses):
        count.crashes += 1
        count.crash_points += index != last
        last = index
        expected = actor.model.at(index)
        key = (image.key(), id(expected), loss.kills_the_process_only)
        if key in seen:
            continue
        seen.add(key)
        following = journal[index] if index < len(journal) else None
        for late in [None, following] if isinstance(following, Put) else [None]:
            count.states += 1
            yield Crash(index, loss, image, expected, late)


def recover(crash: Crash, sync: str, folder: Path, clock_us: int, *, tiers: bool = True) -> Actor:
    """Reopen as a reader and as the writer, append, run a tiering pass, and read everything again.

    Returns
    -------
    Actor
        Who did it; its journal and model are those of the recovery.

    Raises
    ------
    Violation
    """
    recorder = Recorder(folder, crash.image)
    actor = Actor(recorder, Clock(clock_us), sync)
    try:
        with recorder.readers_syncs():
            _recover(actor, crash, tiers=tiers)
        check_removals(recorder)
    except (tiered.TieredError, OSError, Violation) as error:
        raise Violation(f"{crash}: {type(error).__name__}: {error}") from error
    return actor


def _recover(actor: Actor, crash: Crash, *, tiers: bool) -> None:
    actor.recover(crash.expected, kill=crash.loss.kills_the_process_only)
    try:
        actor.open()
        if tiers:
            actor.scan()
        # Their creation or deletion had not returned, and they are there: for whoever asked to go on with.
        pending = [
            name
            for name, alternatives in crash.expected.topics.items()
            if len(alternatives) > 1
            and any(topic is None for topic, _ in alternatives)
            and actor.model.topics[name] != (None,)
        ]
        if crash.late is not None and crash.index % 2:
            actor.recorder.bucket.land(crash.late)
        for name, (topic,) in actor.model.topics.items():
            for partition in range(len(topic.logs) if topic else 0):
                actor.append(name, 10_000 + crash.index, partition=partition)
        actor.flush()
        if tiers or pending or crash.late is not None:
            actor.tier(OFFLOAD_US if crash.index % 3 else EVICT_US)
        if crash.late is not None and not crash.index % 2:
            actor.recorder.bucket.land(crash.late)
            actor.tier(EVICT_US)
        actor.scan()
        for name in pending:
            actor.delete(name)
        actor.close()
    finally:
        if hasattr(actor, "store"):
            let_go(actor.store)


def check(actor: Actor, sample: Sample, count: Count) -> None:
    """Crash everywhere and recover; at some points, crash everywhere in the recovery as well."""
    check_removals(actor.recorder)
    for crash in crashes(actor, sample, count):
        again = sample.again(crash.index)
        with TemporaryDirectory(prefix="crash-") as folder:
            second = recover(
                crash, actor.sync, Path(folder), actor.clock(), tiers=again or sample.tiers(crash.index)
            )
        if again:
            count.second_crashes += 1
            try:
                check(second, replace(sample, again_every=0, stride=max(2, sample.stride)), count)
            except Violation as error:
                raise Violation(f"{crash}; then {error}") from error


def check_removals(recorder: Recorder) -> None:
    """Nothing local was removed but what the bucket has under its own segment id, or what nobody may read (P5).

    Raises
    ------
    Violation
    """
    disk = Disk(recorder.start)
    for index, op in enumerate(recorder.journal):
        if isinstance(op, Unlink) and (name := SegmentName.parse(op.name)):
            reason = _may_go(disk, op, name)
            if reason is not None:
                raise Violation(f"operation {index} removes {name} of directory {op.parent}: {reason}")
        disk.apply(op)


def _may_go(disk: Disk, op: Unlink, name: SegmentName) -> str | None:
    path, file, directory = next(
        item
        for item in disk.live_files()
        if item[2] is disk.directories[op.parent] and item[0].endswith(op.name)
    )
    if any(part.startswith(".deleted-") for part in path.split("/")):
        return None
    names = [SegmentName.parse(other) for other in directory.durable]
    if any(n and n.base_offset == name.base_offset and n.generation > name.generation for n in names):
        return None
    starts = [n.base_offset for n in names if n and n.base_offset > name.base_offset]
    if not starts:
        return "it is the newest file"
    end = min(starts)
    if end <= _durable_start(disk, directory):
        return None
    header = decode_segment_header(pa.py_buffer(bytes(file.live)), where=path)
    found = [key for key in disk.objects if key.endswith("/head.json") and str(header.topic_id) in key]
    for key in found:
        head = decode_head(disk.objects[key][0], where=key)
        if head.partition != header.partition:
            continue
        folder = key.removesuffix("head.json")
        entries = [entry for entry in head.inline if f"{folder}data/{entry.name}" in disk.objects]
        if covers(entries, header.segment_id, name.base_offset, end):
            return None
    return f"the bucket has not all of segment {header.segment_id}, [{name.base_offset}, {end})"


def _durable_start(disk: Disk, directory: Directory) -> int:
    node = directory.durable.get(START_FILE)
    if node is None or not disk.files[node].durable:
        return 0
    return int(json.loads(disk.files[node].durable)["start_offset"])
