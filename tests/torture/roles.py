"""What the processes of these tests do: write, tier, read, fork. Each notes in a journal what it did.

Lines of a journal::

    intent  TOPIC PARTITION THREAD FIRST COUNT BLOCK   about to append; PARTITION -1: the store chooses; BLOCK 1: one block
    ack     TOPIC PARTITION THREAD FIRST COUNT OFFSET  it is durable at these offsets
    all     TOPIC -1 THREAD FIRST COUNT                they are durable, in whichever partitions
    end     TOPIC PARTITION START END                  so are these offsets
    published TOPIC PARTITION END                      the bucket has everything before
    delete  TOPIC PARTITION OFFSET                     about to delete what lies before
    deleted TOPIC PARTITION OFFSET                     done
    dropping TOPIC                                     about to delete the topic
    dropped TOPIC                                      done
    created TOPIC                                      the topic is there, be it a new one
    saw     TOPIC PARTITION OFFSET TEXT…               a reader was given these
    pass    DONE FAILED                                a tiering pass ended
    report  JSON                                       the same, in full
    error   WHERE TEXT                                 an error that must not be
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import tiered
from tests.support.stores import COMPRESS_US, EVICT_US, HOUR_US, OFFLOAD_US
from tests.torture.appends import Appender, Notes, Numbered, Passing
from tests.torture.broken import broken_by
from tests.torture.payload import TOPICS, TYPED, small_settings, texts
from tests.torture.steps import Steps
from tiered.format import manifest_changes
from tiered.policies.actions import Expire
from tiered.tiering.local_actions import LocalActions
from tiered.warm import file_end

# Nobody lives on where a test forgot to end it.
SECONDS_MAX = 120.0
# Readers and tierers leave the processor to who appends for so long between two rounds.
PAUSE_SECONDS = 0.02
STEPS_US = (COMPRESS_US, OFFLOAD_US, EVICT_US)
EXPIRE_US = 31 * 24 * HOUR_US
# Beside those of `small_settings`; nothing expires but in passes that are so far ahead.
MOVES = {
    "merge": {"after": "4h", "target_bytes": "64KiB"},
    "cut": {"deleted": 0},
    "retention": {"age": "30d"},
}


def now_ms(ahead_us: int) -> int:
    """The wall clock, so much ahead, in milliseconds."""
    return (time.time_ns() // 1000 + ahead_us) // 1000


def small_files() -> None:
    """A few segments fill a page of the manifest, and small files reserve room as large ones do."""
    manifest_changes.INLINE_ENTRIES_MAX = 2
    file_end._AHEAD_BYTES_MIN = 1024


# -- the writer ------------------------------------------------------------------------------------


class Writer:
    """Threads that append, roll, scan, delete and perhaps tier, until the process is killed.

    Parameters
    ----------
    first
        Number of the first record that the producer is to append, or to append again.
    """

    def __init__(
        self, journal: Any, path: str, url: str, seed: int, life: int, sync: str, tiers: bool, tail: str,
        deletes: bool, step: dict[str, Any], first: int = 0, pause: float = 0.0,
    ) -> None:  # fmt: skip
        self.journal = journal
        self.notes = Notes(journal, seed, life, sync)
        self.random = random.Random(f"{seed}.{life}")
        steps = Steps(journal.word, **step)
        settings = small_settings(sync, tail, **MOVES)
        self.store = tiered.open(path, cold=url, settings=settings, host=steps.host())
        self.tiers = tiers
        self.deletes = deletes
        self.first = first
        self.pause = pause
        for name, partitions in TOPICS.items():
            schema = TYPED if name == "typed" else None
            key = "city" if name == "typed" else None
            self.store.create_topic(name, partitions=partitions, schema=schema, key=key, exist_ok=True)

    def run(self) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        works: list[Callable[[], None]] = []
        for thread, (topic, way) in enumerate(
            [
                ("records", Appender.one_waiting),
                ("records", Appender.some_then_flush),
                ("records", Appender.many),
                ("records", Appender.batch),
                ("records", Appender.many_columns),
                ("typed", Appender.one_waiting),
                ("typed", Appender.batch),
                ("typed", Appender.some_then_flush),
            ]
        ):
            works.append(partial(way, Appender(self.notes, self.store, thread, topic)))
        works.append(Numbered(self.notes, self.store, self.first, keyed=not self.deletes).some)
        works.append(Passing(self.notes, self.store, len(works)).turn)
        others = [self.roll_and_scan]
        if self.tiers:
            others.append(partial(one_pass, self.journal, self.store, self.random, deletes=self.deletes))

        def repeat(work: Callable[[], None], pause: float) -> None:
            try:
                while time.monotonic() < deadline:
                    work()
                    time.sleep(pause)
            except BaseException as error:  # noqa: BLE001 - the journal tells the test
                self.journal.error(error, repr(work))
                self.journal.word("failed")

        threads = [threading.Thread(target=repeat, args=[work, self.pause]) for work in works]
        threads += [threading.Thread(target=repeat, args=[work, PAUSE_SECONDS]) for work in others]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def roll_and_scan(self) -> None:
        """Scans are dense and the same when used again, whatever moves (promise P8)."""
        name = self.random.choice(list(TOPICS))
        topic = self.store.topic(name)
        dice = self.random.random()
        if dice < 0.3:
            topic.roll()
        elif dice < 0.4 and self.deletes:
            partition = self.random.randrange(TOPICS[name])
            start, end = topic.offsets()[partition][1:]
            offset = start + (end - start) // 3
            self.journal("delete", name, partition, offset)
            topic.delete_before(offset, partition)
            self.journal("deleted", name, partition, offset)
        try:
            scan = topic.scan()
            table = scan.to_arrow()
            check_dense(table)
            if dice > 0.9 and not scan.to_arrow().equals(table):
                raise AssertionError(f"two uses of one scan of {name} differ")
        except tiered.OffsetOutOfRange:
            if not self.deletes:
                raise


def check_dense(table: pa.Table) -> None:
    """No gap, no duplicate, no other order, within each partition."""
    last: dict[int, int] = {}
    for partition, offset in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True):
        if offset != last.setdefault(partition, offset - 1) + 1:
            raise AssertionError(f"partition {partition}: offset {offset} follows {last[partition]}")
        last[partition] = offset


def writer(journal: Any, *, broken: str = "", **arguments: Any) -> None:
    """Append until killed."""
    small_files()
    note_expiry(journal)
    with broken_by(broken):
        Writer(journal, **arguments).run()


# -- the tierer ------------------------------------------------------------------------------------


def one_pass(journal: Any, store: tiered.Store, dice: random.Random, *, deletes: bool) -> None:
    """Run one pass, as if some hours had passed, or so much that everything sealed expires; now and then a sweep."""
    try:
        ahead_us = EXPIRE_US if deletes and dice.random() < 0.05 else dice.choice(STEPS_US)
        report = store.tier(now_ms(ahead_us))
        if dice.random() < 0.15:
            store.sweep()
    except tiered.StoreLocked:
        time.sleep(0.01)  # the other process is at it
        return
    journal("pass", len(report.done), len(report.failed))
    for action, message in report.failed:
        journal("error", "pass", json.dumps(f"{action.kind} {action.topic}/{action.partition}: {message}"))


def note_expiry(journal: Any) -> None:
    """Let the journal have what passes of this process delete, before they do."""
    expire = LocalActions.expire

    def noted(self: LocalActions, action: Expire, /) -> int | None:
        journal("delete", action.topic, action.partition, action.end_offset)
        return expire(self, action)

    LocalActions.expire = noted  # type: ignore[method-assign]


def tierer(
    journal: Any,
    path: str,
    seed: int,
    life: int,
    tail: str,
    deletes: bool,
    step: dict[str, Any],
    *,
    broken: str = "",
) -> None:
    """Tier a store that another process writes, until killed."""
    small_files()
    note_expiry(journal)
    steps = Steps(journal.word, **step)
    dice = random.Random(f"{seed}.{life}.tierer")
    deadline = time.monotonic() + SECONDS_MAX
    settings = small_settings("interval", tail, **MOVES)
    with (
        broken_by(broken),
        tiered.open(path, settings=settings, tierer=True, host=steps.host()) as store,
    ):
        journal.word("ready")
        while time.monotonic() < deadline:
            one_pass(journal, store, dice, deletes=deletes)
            time.sleep(PAUSE_SECONDS)


def passes(journal: Any, path: str, ahead_us: list[int], step: dict[str, Any], sweep: bool = False) -> None:
    """Run these passes and report each in full; go on after an error, as a daemon does."""
    small_files()
    steps = Steps(journal.word, **step)
    with tiered.open(path, settings=small_settings("interval"), tierer=True, host=steps.host()) as store:
        for ahead in ahead_us:
            try:
                report = store.sweep() if sweep else store.tier(now_ms(ahead))
                journal("report", json.dumps(report.to_json()))
            except tiered.TieredError as error:
                journal("report", json.dumps({"raised": type(error).__name__, "text": str(error)}))
            journal.word("passed")


# -- the reader ------------------------------------------------------------------------------------


def reader(journal: Any, path: str, deletes: bool) -> None:
    """Read beside the writer until killed, and note every record at the first time it is given."""
    known: dict[tuple[str, int], dict[int, str]] = {}
    deadline = time.monotonic() + SECONDS_MAX
    while not (Path(path) / "store.json").exists():
        time.sleep(0.005)
    with tiered.open(path, read_only=True, settings=small_settings("interval")) as store:
        while time.monotonic() < deadline:
            for name in TOPICS:
                try:
                    table = store.topic(name).scan().to_arrow()
                except tiered.TopicNotFound:
                    continue
                except tiered.OffsetOutOfRange:
                    if not deletes:
                        raise
                    continue
                check_dense(table)
                _note(journal, known, name, table)
            time.sleep(PAUSE_SECONDS)


def _note(journal: Any, known: dict[tuple[str, int], dict[int, str]], name: str, table: pa.Table) -> None:
    fresh: dict[int, list[tuple[int, str]]] = {}
    columns = (table["partition"].to_pylist(), table["offset"].to_pylist(), texts(table))
    for partition, offset, text in zip(*columns, strict=True):
        seen = known.setdefault((name, partition), {})
        if offset not in seen:
            fresh.setdefault(partition, []).append((offset, text))
        elif seen[offset] != text:
            raise AssertionError(f"{name}/{partition}@{offset} was {seen[offset]!r} and became {text!r}")
    for partition, rows in fresh.items():
        known[name, partition].update(rows)
        journal("saw", name, partition, rows[0][0], *(text for _, text in rows))


# -- forks -----------------------------------------------------------------------------------------


def forker(journal: Any, path: str, url: str, forks: int) -> None:
    """Fork again and again while threads append, scan and tier; children must find every call refused."""
    small_files()
    store = tiered.open(path, cold=url, settings=small_settings("interval"))
    topic = store.create_topic("records", partitions=2)
    # What Arrow does for the first time, a child that is forked meanwhile waits for in its own scan.
    topic.append_batch(_TABLE, partition=0)
    topic.roll()
    store.tier(now_ms(EVICT_US))
    topic.append_batch(_TABLE, partition=0)
    check_dense(topic.scan().to_arrow())
    stop = threading.Event()
    counts = [0] * 4

    def append(name: int) -> None:
        while not stop.is_set():
            topic.append(f"{name}.{counts[name]}".encode(), partition=name % 2, sync=name == 0)
            counts[name] += 1
            time.sleep(0.001)

    def move() -> None:
        while not stop.is_set():
            topic.roll()
            store.tier(now_ms(EVICT_US))

    def scan() -> None:
        while not stop.is_set():
            check_dense(topic.scan().to_arrow())

    works = [*(partial(append, name) for name in range(4)), move, scan]
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for number in range(forks):
        time.sleep(0.01)
        child = os.fork()
        if not child:
            try:
                signal.alarm(20)  # a call that hangs ends the child by a signal
                os._exit(0 if _refused(journal, store, topic, path) else 1)
            except BaseException as error:  # noqa: BLE001 - the journal tells the test
                journal.error(error, "child")
            finally:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        journal("fork", number, status)
        if status:
            break
    stop.set()
    for thread in threads:
        thread.join()
    store.close()
    with tiered.open(path, settings=small_settings("interval")) as again:
        table = again.topic("records").scan().to_arrow()
        check_dense(table)
        journal("forked", table.num_rows, sum(counts) + 2)


# Made here, as Arrow's first array imports pandas: a child that is forked in the middle of that waits for ever.
_TABLE = pa.table({"value": [b"child"]})


def _refused(journal: Any, store: tiered.Store, topic: tiered.Topic, path: str) -> bool:
    calls: list[Callable[[], object]] = [
        lambda: topic.append(b"child", partition=0),
        lambda: topic.append(b"child", partition=1, sync=True),
        lambda: topic.append_many([b"child"] * 500),
        lambda: topic.append_batch(_TABLE),
        topic.flush,
        topic.roll,
        topic.scan,
        topic.offsets,
        store.topics,
        store.tier,
        store.status,
        store.flush,
    ]
    fine = True
    for number, call in enumerate(calls):
        try:
            call()
        except tiered.StoreClosed:
            continue
        except BaseException as error:  # noqa: BLE001 - the journal tells the test
            journal.error(error, f"call {number}")
        fine = False
    store.close()
    try:
        tiered.open(path)
        fine = False
    except tiered.StoreLocked:
        pass
    with tiered.open(path, read_only=True) as beside:
        check_dense(beside.topic("records").scan().to_arrow())
    return fine


ROLES: dict[str, Callable[..., None]] = {
    "writer": writer,
    "tierer": tierer,
    "passes": passes,
    "reader": reader,
    "forker": forker,
}
