"""Histories that the scripted life does not have: rot, an old image of the disk, failed syncs, no room."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

import tiered
from tests.crash.check import Count, Crash, Sample, check, check_removals, crashes, recover
from tests.crash.workload import record
from tests.support.clock import Clock
from tests.support.disk_model import EVERYTHING
from tests.support.recorder import Recorder
from tests.support.segments import footer_of
from tests.support.store_actor import Actor, look
from tests.support.stores import COMPRESS_US, EVICT_US, OFFLOAD_US, let_go
from tests.support.topic_model import Log, TopicModel, Violation
from tiered.format.segment import decode_segment_header
from tiered.warm.segment_scan import scan_blocks


def started(folder: Path, sync: str = "interval") -> Actor:
    """A user of an empty store at `folder`."""
    folder.mkdir()
    return Actor(Recorder(folder), Clock(), sync)


def check_rot(folder: Path, sync: str) -> int:
    """Flip one bit of what is provably synced, in many crashes; return how many.

    Raises
    ------
    Violation
        One was not reported as corruption.
    """
    tried = 0
    for crash in _rotten(record(folder / "life", sync)):
        tried += 1
        try:
            with TemporaryDirectory(dir=folder) as name:
                recover(crash, sync, Path(name), 1_750_000_000_000_000)
        except Violation as error:
            if not isinstance(error.__cause__, tiered.CorruptionError):
                raise
        else:
            raise Violation(f"{crash}: a flipped bit was not noticed")
    return tried


def _rotten(actor: Actor) -> Iterator[Crash]:
    draw = random.Random(7)
    for crash in crashes(actor, Sample(seeds=1, stride=23), Count()):
        for path, data in crash.image.files.items():
            spot = _proven(path, data, draw)
            if spot is not None:
                spoilt = bytearray(data)
                spoilt[spot] ^= 1 << draw.randrange(8)
                image = replace(crash.image, files=crash.image.files | {path: bytes(spoilt)})
                yield replace(crash, image=image, late=None)


def _proven(path: str, data: bytes, draw: random.Random) -> int | None:
    """A place in the blocks of an active segment, before what its last block says was synced."""
    if not path.endswith(".log") or "/.delet" in path:  # nobody reads these
        return None
    buffer = pa.py_buffer(data)
    header = decode_segment_header(buffer)
    try:
        if footer_of(buffer, where=path) is not None:
            return None
    except tiered.CorruptionError:
        return None  # a torn seal
    synced = scan_blocks(buffer, header, where=path).synced_through
    return draw.randrange(header.length, synced) if synced > header.length else None


def check_old_image(folder: Path) -> None:
    """Set the disk back to before the records that the bucket has, while the bucket does not answer.

    Nobody can notice then. What is acknowledged at the same offsets must stay on the disk.

    Raises
    ------
    Violation
    """
    first = started(folder / "old")
    first.open()
    first.create("orders")
    old = len(first.recorder.journal)
    first.batch("orders", 1, 2, 3, sync=True)
    first.roll("orders")
    first.append("orders", 4)
    first.flush()
    first.tier(OFFLOAD_US)
    first.close()
    images = first.recorder.crashes(lambda index: [EVERYTHING] if index == old else [])
    (image,) = [image for _, _, image in images]

    (folder / "new").mkdir()
    start = replace(image, objects=dict(first.recorder.bucket.objects))
    again = Actor(Recorder(folder / "new", start), Clock(), "interval")
    again.model.topics["orders"] = (TopicModel("orders", [Log()]),)
    again.recorder.bucket.fails = True
    again.open()
    again.batch("orders", 11, 12, 13, sync=True)
    again.roll("orders")
    again.batch("orders", 14, 15, sync=True)
    again.recorder.bucket.fails = False
    for ahead_us in (OFFLOAD_US, EVICT_US, EVICT_US):
        with suppress(tiered.TieredError):
            again.store.tier((again.clock() + ahead_us) // 1000)
    check_removals(again.recorder)
    again.scan()
    let_go(again.store)


def check_failed_sync(folder: Path, sync: str = "interval") -> int:
    """Let the n-th sync fail, for every n; the kernel then drops the pages and calls them clean.

    Returns
    -------
    int
        Crashes looked at.

    Raises
    ------
    Violation
    """
    count = Count()
    for number in range(1, 40):
        actor = started(folder / f"{sync}-{number}", sync)
        left = [number]

        def fault(name: str, left: list[int] = left) -> None:
            left[0] -= name == "sync"
            if name == "sync" and left[0] == 0:
                raise OSError(5, "Input/output error (injected)")

        actor.open()
        actor.create("orders")
        actor.recorder.fault = fault
        poisoned = False
        try:
            for value in range(5):
                actor.batch("orders", value, value + 1)
                actor.flush()
                if value % 2:
                    actor.roll("orders")
        except tiered.PartitionPoisoned:
            poisoned = True
            try:
                actor.store.topic("orders").append(b"refused")
            except tiered.PartitionPoisoned:
                pass
            else:
                raise Violation("a poisoned partition takes records")
        except OSError as error:
            # The sync of a segment that was to be made: nothing was opened yet.
            poisoned = error.errno == 5
        try:
            actor.store.close()
        except tiered.PartitionPoisoned:
            poisoned = True
        check(actor, Sample(stride=5, first=number, pass_every=3), count)
        if left[0] > 0:
            return count.crashes
        if not poisoned:
            raise Violation(f"sync {number} failed, and nobody was told")
    raise AssertionError("the syncs never end")


def check_no_room(folder: Path, number: int) -> int | None:
    """Live a short life in which the disk has no room from the n-th operation that needs some on.

    Whatever is refused is repeated once there is room again, in the same open store.

    Returns
    -------
    int or None
        Crashes looked at afterwards; None where the life has fewer such operations.

    Raises
    ------
    Violation
    """
    actor = started(folder)
    left, refused = [number], [0]

    def fault(name: str) -> None:
        if name in ("create", "reserve", "write", "rename", "make_directory"):
            left[0] -= 1
            if left[0] < 0:
                refused[0] += 1
                raise tiered.DiskFull("no room on the local disk (injected)")

    actor.recorder.fault = fault
    try:
        for step in _steps(actor):
            try:
                step()
            except tiered.DiskFull:
                left[0] = 1 << 30  # room again
                actor.model.mark()
                step()
    finally:
        if hasattr(actor, "store"):
            let_go(actor.store)
    if not refused[0]:
        return None
    count = Count()
    check(actor, Sample(seeds=0, stride=41, first=number, pass_every=2), count)
    return count.crashes


def check_read_only(folder: Path, number: int) -> int | None:
    """Live a short life whose disk is mounted anew, read-only, at the n-th operation that writes (EROFS).

    Linux does so after an error of the device. What is there can be read; nothing is acknowledged any more.

    Returns
    -------
    int or None
        Crashes looked at afterwards; None where the life has fewer such operations.

    Raises
    ------
    Violation
    """
    actor = started(folder)
    left = [number]

    def fault(name: str) -> None:
        if name in ("create", "write", "rename", "make_directory", "truncate", "unlink", "remove_directory"):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.EROFS, "Read-only file system (injected)")

    actor.recorder.fault = fault
    refusal: Exception | None = None
    try:
        for step in _steps(actor):
            try:
                step()
            except (tiered.TieredError, OSError, Violation) as error:
                refusal = error
                break
        if refusal is None:
            return None
        _check_refusing(actor, refusal)
    finally:
        if hasattr(actor, "store"):
            let_go(actor.store)
    count = Count()
    check(actor, Sample(seeds=0, stride=41, first=number, pass_every=2), count)
    return count.crashes


def _check_refusing(actor: Actor, refusal: Exception) -> None:
    """It was refused for that reason; the store reads, and refuses records."""
    causes: list[str] = []
    cause: BaseException | None = refusal
    while cause is not None:
        causes.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    if not any("Read-only file system" in text for text in causes):
        raise Violation(f"the reason is not said: {refusal!r}") from refusal
    try:
        with actor.reader() as store:
            names = store.topics()
            for name in names:
                look(store.topic(name))
    except tiered.ConfigError:
        if actor.model.created:
            raise
        return
    for name in names:
        try:
            found = actor.store.topic(name).append({} if name == "rows" else b"refused", sync=True)
        except (tiered.TieredError, OSError):
            continue
        raise Violation(f"{found} was acknowledged on a disk that takes no bytes")


def _steps(actor: Actor) -> Iterator[Callable[[], object]]:
    """Each step changes one thing, so that it can be repeated as it is."""
    yield actor.open
    yield lambda: actor.create("orders")
    yield lambda: actor.batch("orders", 1, 2, 3, sync=False)
    yield actor.flush
    yield lambda: actor.append("orders", 4, sync=False)
    yield lambda: actor.blocks("orders", (61, 62), (63,), (64, 65))
    yield lambda: actor.roll("orders")
    yield lambda: actor.create("rows", columns=("a",))
    yield lambda: actor.batch("rows", 5, 6, sync=False)
    yield lambda: actor.add_column("rows", "b")
    yield lambda: actor.batch("rows", 7, sync=False)
    yield lambda: actor.batch("orders", *range(10, 60), sync=False)
    yield actor.flush
    yield lambda: actor.tier(COMPRESS_US)
    yield lambda: actor.tier(OFFLOAD_US)
    yield lambda: actor.delete_before("orders", 2)
    yield lambda: actor.tier(EVICT_US)
    yield lambda: actor.delete("rows")
    yield lambda: actor.create("rows", columns=("a",))
    yield lambda: actor.append("rows", 8, sync=False)
    yield actor.scan
    yield actor.close
    yield actor.open
    yield lambda: actor.append("orders", 9, sync=False)
    yield actor.scan
    yield actor.close
