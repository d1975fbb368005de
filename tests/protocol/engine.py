"""The engine in the model: real tiering, claims, restore, sweep and reading, over local disks that are values.

What is real: `Committer`, `PartitionManifest`, `Claims`, `PublishActions` (offload, ship_tail), `LocalActions` (evict_local, expire),
`Executor._run_partition`, `_Restore`, `PartitionSweeper`, `Bucket`, `snapshot_partition`, `read_split`, `resolve`, and all of
`format.manifest`. What stands in: segment files and the documents beside them (values in a `Disk`, each look at or change
of a shared one is a step), Parquet (an object is the JSON of its records), local locks (which the model
leaves out: fencing must hold by itself), and ids, which are numbered so that a replay meets the same ones.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.protocol.bucket import CLOCK, SimBucket, SimStore
from tests.protocol.explorer import Footprint, Request, World
from tiered.cold.manifest import commit, partition_manifest
from tiered.cold.manifest import restores as restoring
from tiered.cold.manifest import store_documents as bucket_module
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.keys import PartitionKeys
from tiered.cold.manifest.restores import IntentHolder, IntentWatch
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.cold.object_store.options import ColdOptions
from tiered.cold.upkeep.sweep import PartitionSweeper, PartSweep, SweepRules
from tiered.errors import TieredError
from tiered.format import manifest_changes
from tiered.format.manifest import Head, ObjectEntry, RowGroup
from tiered.format.segment_facts import SegmentFacts
from tiered.hot import recovery
from tiered.policies.actions import Action, EvictLocal, Expire, Offload, ShipTail
from tiered.policies.executor import Executor, Handler
from tiered.reader import read, snapshot
from tiered.reader import tiers as access_module
from tiered.reader.locations import TierLocations
from tiered.reader.rows import Query
from tiered.reader.same_log import SameLog
from tiered.reader.tiers import Tiers
from tiered.recovery import bucket_check
from tiered.recovery.bucket_check import verify_bucket
from tiered.recovery.restore import _Restore
from tiered.settings.settings import Settings
from tiered.survey.local_segments import LocalSegments
from tiered.tiering import claims as claims_module
from tiered.tiering import fences, local_actions, partition_handle, publish_actions, store_claim
from tiered.tiering.claims import Claims
from tiered.tiering.local_actions import LocalActions
from tiered.tiering.partition_handle import PartitionHandle
from tiered.tiering.publish_actions import PublishActions
from tiered.warm.partition_directory import Listing, SegmentName

STORE, TOPIC = UUID(int=1), UUID(int=2)
_RESTORE = import_module("tiered.recovery.restore")  # the package has a function of that name
NAME = "t"
CLOCK_US = 1_000_000
SETTINGS = Settings()


@dataclass(frozen=True)
class Meta:
    """A topic of one partition and one schema; see `TopicMeta`."""

    topic_id: UUID = TOPIC
    name: str = NAME
    partitions: int = 1
    schemas: tuple[str, ...] = ("x",)
    schema: str = "x"
    schema_id: int = 0
    key_column: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "id": str(self.topic_id), "partitions": 1, "schemas": [{"arrow": "x"}]}


META = Meta()


class Index:
    """See `BlockIndex`: few and small blocks, which are one piece."""

    def __len__(self) -> int:
        return 1

    def fitting_end(self, start: int, end: int, bytes_max: int) -> int:
        return end


@dataclass(frozen=True, eq=False)
class Segment:
    """A segment file as it was when it was opened; see `SegmentFile`."""

    header: Any
    records: tuple[str, ...]
    facts: SegmentFacts | None
    path: Path

    scan = None
    index = Index()
    matches_path = True
    producers = ()

    @property
    def end_offset(self) -> int:
        return self.header.base_offset + len(self.records)

    @property
    def bytes(self) -> int:
        return 100

    @property
    def identity(self) -> Hashable:
        return str(self.path), self.header.segment_id, self.records, self.facts is None

    def __hash__(self) -> int:
        return hash(self.identity)

    def blocks(self, start: int, end: int) -> list[Any]:
        header = SimpleNamespace(min_timestamp_us=0, max_timestamp_us=0, append_us=0)
        return [SimpleNamespace(header=header)]


def hash_of(records: tuple[str, ...]) -> str:
    """See `ContentHash`."""
    return hashlib.blake2b(json.dumps(records).encode(), digest_size=16).hexdigest()


class ModelEnds:
    """See `SegmentEnds`: each record is a block."""

    def hash_at(self, segment: Segment, offset: int) -> str:
        return hash_of(segment.records[: offset - segment.header.base_offset])

    def producers_at(self, segment: Segment, offset: int) -> tuple[()]:
        return ()


class Disk:
    """The local directory of one partition, and what lies beside it.

    Attributes
    ----------
    shared
        Whether several processes look at it, so that each look is a step.
    appended
        Every record that was ever appended here, by offset.
    rolled
        Every segment that was ever sealed here, in order.
    evicting
        Called before a segment is removed.
    """

    def __init__(self, world: World, name: str, *, shared: bool = False, meta: Meta = META) -> None:
        self.world, self.name, self.shared, self.meta = world, name, shared, meta
        self.root = Path("/") / name
        self.directory = self.root / "topics" / meta.name / "0"
        self.segments: dict[str, Segment] = {}
        self.appended: dict[int, str] = {}
        self.rolled: list[Segment] = []
        self.start = 0
        self.lineage: int | None = None
        self.store_lineage = 1
        self.fence: str | None = None
        self.evicting: Callable[[Segment], None] = lambda segment: None
        world.fingerprints.append(self._fingerprint)

    def _fingerprint(self) -> Hashable:
        segments = frozenset(item.identity for item in self.segments.values())
        return segments, self.start, self.lineage, self.store_lineage, self.fence is None

    def do(self, what: str, take: Callable[[], Any], *, writes: bool = False) -> Any:
        """Look at the disk or change it."""
        if not self.shared:
            return take()
        keys = (f"disk:{self.name}",)
        footprint = Footprint((), keys) if writes else Footprint(keys)
        return self.world.step(Request(what, footprint, lambda _: take(), ready=lambda: True))

    @property
    def newest(self) -> Segment:
        return self.segments[max(self.segments)]

    @property
    def end(self) -> int:
        return self.newest.end_offset

    def create(self, base: int, segment: int | None = None, follows: str = "") -> Segment:
        """Add an empty segment."""
        header = SimpleNamespace(
            store_id=STORE, topic_id=self.meta.topic_id, partition=0, generation=0, schema_id=0, base_offset=base,
            created_us=0, lineage_epoch=self.lineage or 1, prev_origin_hash=follows,
            segment_id=self.world.uuid() if segment is None else UUID(int=segment),
        )  # fmt: skip
        name = str(SegmentName(base, 0))
        made = self.segments[name] = Segment(header, (), None, self.directory / name)
        return made

    def append(self, count: int = 1) -> None:
        """Append records, durably; each tells its lineage and its offset."""

        def take() -> None:
            old = self.newest
            new = [f"{self.lineage or 1}:{old.end_offset + i}:{self.name}" for i in range(count)]
            self.appended.update(enumerate(new, start=old.end_offset))
            self.segments[old.path.name] = replace(old, records=(*old.records, *new))

        self.do("append", take, writes=True)

    def roll(self) -> None:
        """Seal the newest segment and begin another."""

        def take() -> None:
            old = self.newest
            header = old.header
            facts = SegmentFacts(
                store_id=STORE, topic_id=header.topic_id, segment_id=header.segment_id, partition=0,
                generation=0, schema_id=0, base_offset=header.base_offset, end_offset=old.end_offset,
                record_count=len(old.records), min_timestamp_us=0, max_timestamp_us=0, created_us=0,
                last_append_us=0, lineage_epoch=header.lineage_epoch, origin_hash=hash_of(old.records),
            )  # fmt: skip
            self.segments[old.path.name] = replace(old, facts=facts)
            self.rolled.append(self.segments[old.path.name])
            self.create(old.end_offset, follows=facts.origin_hash)

        self.do("roll", take, writes=True)

    def fill(self, *counts: int) -> None:
        """Make sealed segments of so many records, and an empty one behind them."""
        if not self.segments:
            self.create(0)
        for count in counts:
            self.append(count)
            self.roll()

    def sealed(self) -> list[Segment]:
        return [item for _, item in sorted(self.segments.items()) if item.facts is not None]

    def names(self) -> list[SegmentName]:
        """List the directory."""
        found = self.do("list directory", lambda: sorted(self.segments))
        return [name for text in found if (name := SegmentName.parse(text))]

    def open(self, name: str) -> Segment:
        def take() -> Segment:
            if name not in self.segments:
                raise FileNotFoundError(name)
            return self.segments[name]

        segment = self.do(f"open {int(name.split('-')[0])}", lambda: _caught(take))
        if isinstance(segment, OSError):
            raise segment
        return segment

    def unlink(self, path: Path) -> None:
        def take() -> None:
            found = self.segments.pop(path.name, None)
            if found is not None:
                self.evicting(found)

        # The check of an eviction depends on the head.
        footprint = Footprint(
            (PartitionKeys.of(self.meta.name, self.meta.topic_id, 0).head,), (f"disk:{self.name}",)
        )
        what = f"unlink {int(path.name.split('-')[0])}"
        self.world.step(Request(what, footprint, lambda _: take()))

    def read_start(self) -> int:
        return self.do("read start offset", lambda: self.start)

    def write_start(self, offset: int) -> None:
        def take() -> None:
            self.start = max(self.start, offset)

        self.do("write start offset", take, writes=True)


def _caught(take: Callable[[], Any]) -> Any:
    try:
        return take()
    except OSError as error:
        return error


class ModelAccess(Tiers):
    """The real one, with segments of the model."""

    def __init__(self, model: Model, disk: Disk | None) -> None:
        root = disk.root if disk else None
        super().__init__(
            TierLocations(root, "sim://bucket", ColdOptions()),
            open_bucket=lambda url, options: SimStore(model.bucket),
        )
        self._disk = disk

    def segment(self, path: str | Path) -> Any:
        assert self._disk is not None
        return self._disk.open(Path(path).name)

    def forget(self, path: str | Path) -> None: ...

    def hold_topic(self, meta: Any) -> AbstractContextManager[None]:
        return nullcontext()


class ModelWriter:
    """What tiering asks of the writer in its process; see `PartitionWriter`."""

    active_segment_id = None
    fault = None

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    @property
    def end_offset(self) -> int:
        return self.disk.end

    def fence(self, reason: str) -> None:
        self.disk.fence = reason

    def set_start_offset(self, offset: int) -> None:
        self.disk.write_start(offset)

    def flush(self) -> None: ...


class Process:
    """One process that has a store open and tiers it."""

    def __init__(self, model: Model, name: str, disk: Disk) -> None:
        self.model, self.world, self.name, self.disk = model, model.world, name, disk
        self.access = ModelAccess(model, disk)
        same = SameLog()
        same.ends = ModelEnds()  # type: ignore[assignment]
        self.claims = Claims(self.access, STORE, lambda: CLOCK_US, _Files(disk), same)
        writers = {0: ModelWriter(disk)}
        commits = SimpleNamespace(log_end_before=lambda meta, partition: None, participants=list)
        context = SimpleNamespace(tiers=self.access, fs=_Files(disk), settings=SETTINGS, commits=commits)
        topics: Any = SimpleNamespace(
            context=context, topic=lambda name: SimpleNamespace(meta=disk.meta, writers=writers)
        )
        self.handle = PartitionHandle.named(topics, disk.meta.name, 0)
        publish = PublishActions(context, topics, self.claims)  # type: ignore[arg-type]
        local = LocalActions(context, topics, self.claims, publish)  # type: ignore[arg-type]
        self.handlers: dict[type[Action], Handler] = {
            Offload: publish.offload,
            ShipTail: publish.ship_tail,
            EvictLocal: local.evict_local,
            Expire: local.expire,
        }
        self.marks: dict[str, float] = {}

    @property
    def committer(self) -> Committer:
        return self.claims.committer(self.handle)

    def memory(self) -> Hashable:
        """Return what the threads of the process share, besides the disk."""
        restores = self.claims.store.restores
        return (
            tuple(
                (
                    item.epoch,
                    item._known and item._known.etag,
                    item._doubt and item._doubt.base_etag,
                    item._fenced is None,
                    frozenset(item._in_flight),
                    item._lock.holder,  # type: ignore[attr-defined]
                )
                for item in self.claims._committers.values()
            ),
            tuple(tuple(item._pages) for item in self.access._partitions.values()),
            frozenset(self.marks.items()),
            frozenset(self.claims.same.proven.items()),
            (restores._message is None, restores._expired, self.claims.store._documents_lineage),
        )

    def act(self, kind: type[Action], segment: Segment | None, base: int, end: int) -> Action:
        return kind(
            topic=self.disk.meta.name,
            partition=0,
            segment_id=segment.header.segment_id if segment else None,
            base_offset=base,
            end_offset=end,
            bytes=1,
            reason="",
        )

    def run(self, *actions: Action) -> list[str]:
        """Carry a plan out as a pass does; return what failed or was skipped."""
        if self.disk.fence is not None:
            return ["fenced"]
        run = Executor(self.handlers)._run_partition(actions, threading.Event())
        self.model.check_failures(run.failed)
        return [text for _, text in (*run.failed, *run.skipped)]

    def look_always(self) -> None:
        """Look for a restore before each commit."""
        times = itertools.count(10, 10)
        self.claims.store.restores._monotonic = lambda: float(next(times))

    def announce(self) -> None:
        """Be past what precedes the first claim: the prefix is ours, and the topic is known there."""
        self.claims.store.announce(self.disk.meta)  # type: ignore[arg-type]

    def ship_tail(self) -> list[str]:
        """Publish what the newest segment has."""
        newest = self.disk.newest
        return self.run(self.act(ShipTail, newest, newest.header.base_offset, newest.end_offset))

    def expire(self, offset: int) -> list[str]:
        """Move the start offset up."""
        return self.run(self.act(Expire, None, self.disk.start, offset))

    def offload(self, *segments: Segment, evict: bool = False) -> list[str]:
        """Publish sealed segments (default: all that the disk has), and evict them then."""
        found = segments or self.disk.sealed()
        moves = [self.act(Offload, item, item.header.base_offset, item.end_offset) for item in found]
        return self.run(*moves, *(self.evictions(*found) if evict else ()))

    def evictions(self, *segments: Segment) -> list[Action]:
        """Plan the eviction of sealed segments (default: all that the disk has)."""
        found = segments or self.disk.sealed()
        return [self.act(EvictLocal, item, item.header.base_offset, item.end_offset) for item in found]

    def sweep(self, grace: float) -> PartSweep:
        """Sweep as a pass does."""
        clock = Request("what time is it", Footprint((CLOCK,)), lambda _: self.model.bucket.now)
        rules = SweepRules(self.world.step(clock), grace)
        sweeper = PartitionSweeper(self.access.cold(self.disk.meta, 0), rules, dict(self.marks))  # type: ignore[arg-type]
        try:
            return sweeper.sweep(self.committer)
        finally:
            self.marks = sweeper.marks

    def attempt(self, work: Callable[[], object]) -> TieredError | None:
        """Do something that may be refused, with an error that a caller can act upon."""
        try:
            work()
        except TieredError as error:
            self.model.check_error(error)
            return error
        return None


class _Files:
    """The file system as tiering uses it."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def unlink(self, path: Path) -> None:
        if path.suffix == ".log":
            self.disk.unlink(path)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: None


@dataclass
class Model:
    """A world with its bucket and its disks."""

    world: World
    bucket: SimBucket
    disks: dict[Path, Disk] = field(default_factory=dict)
    check_failures: Callable[[Iterable[tuple[Action, str]]], None] = lambda failed: None
    check_error: Callable[[TieredError], None] = lambda error: None

    def disk(self, name: str, **options: Any) -> Disk:
        disk = Disk(self.world, name, **options)
        self.disks[disk.root] = self.disks[disk.directory] = disk
        return disk

    def store(self) -> SimStore:
        return SimStore(self.bucket)


_current: list[Model] = []


def model() -> Model:
    """Return the model of the execution that runs."""
    return _current[-1]


def new_model(world: World) -> Model:
    """Begin another execution."""
    _current[:] = [Model(world, SimBucket(world))]
    return _current[0]


class ModelLock:
    """A lock under which an actor of the same process waits for its turn."""

    def __init__(self) -> None:
        self.holder: str | None = None
        self._depth = 0

    def __enter__(self) -> None:
        world = _current[-1].world
        name = world.name
        if self.holder not in (None, name):
            world.step(Request("lock", Footprint(), lambda _: None, ready=lambda: self.holder is None))
        self.holder, self._depth = name, self._depth + 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self.holder = None


# -- what stands in ---------------------------------------------------------------------------------


def write_object(
    upload: Any,
    schema: Any,
    rows: Any,
    facts: SegmentFacts,
    *,
    name: str,
    sealed: bool,
    row_group_bytes: int,
    key_filter: Any,
) -> Any:
    """See `parquet_object.write_object`: the object is the JSON of its records, by offset."""
    data = json.dumps({facts.base_offset + i: row for i, row in enumerate(rows)}).encode()
    upload.write(data)
    upload.commit()
    base, end, count = facts.base_offset, facts.end_offset, facts.record_count
    return ObjectEntry(
        name=name, base_offset=base, end_offset=end, record_count=count, min_timestamp_us=0, max_timestamp_us=0,
        last_append_us=0, segment_ids=(facts.segment_id,), generation=facts.generation, sealed=sealed,
        bytes=len(data), schema_id=0, tail_position=len(data) - 1, tail_crc=0,
        row_groups=(RowGroup(base, end, count, 0, len(data) - 1, 0, 0, 0),),
        origin_hash=facts.origin_hash, end_hash=facts.end_hash,
    )  # fmt: skip


def records_of(data: bytes) -> dict[int, str]:
    """Return what an object holds, by offset."""
    return {int(offset): record for offset, record in json.loads(data).items()}


class Rows(list[tuple[int, str]]):
    """A batch of rows."""

    @property
    def num_rows(self) -> int:
        return len(self)


def _read_cold(access: Any, meta: Any, split: Any, query: Any, assembler: Any, ahead: Any) -> Iterator[Any]:
    source = split.source
    data = access.object_store.get_range(source.key, 0, source.entry.bytes)
    rows = [item for item in records_of(data).items() if split.start_offset <= item[0] < split.end_offset]
    yield split.end_offset, Rows(rows)


def _read_warm(access: Any, split: Any, source: Any, assembler: Any) -> Iterator[Any]:
    segment = source.opened or access.segment(source.path)
    if segment.header.segment_id != source.segment_id:
        raise FileNotFoundError(source.path)
    base = segment.header.base_offset
    rows = list(enumerate(segment.records, start=base))
    yield split.end_offset, Rows(rows[split.start_offset - base : split.end_offset - base])


def read_all(access: Tiers, meta: Meta, start: int | None = None) -> tuple[int, int, list[tuple[int, str]]]:
    """Take a snapshot and read it: its bounds, and its rows."""
    taken = snapshot.snapshot_partition(access, meta, 0, view=None, start_offset=start)  # type: ignore[arg-type]
    rows: list[tuple[int, str]] = []
    for split in taken.splits:
        for batch in read.read_split(access, meta, split, Query()):  # type: ignore[arg-type]
            rows += batch
    return (taken.start_offset if start is None else start), taken.end_offset, rows


class ModelRestore(_Restore):
    """The real one; the local files are those of a disk."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        host = SimpleNamespace(fs=_Files(disk), clock=lambda: CLOCK_US)
        bucket = StoreDocuments(model().store())
        super().__init__(bucket, verify_bucket(bucket, None, CLOCK_US), None, disk.root, None, SETTINGS, host)  # type: ignore[arg-type]
        self._catalog = SimpleNamespace(  # type: ignore[assignment]
            make_root=lambda: None,
            write_topic=lambda meta: None,
            partition_directory=lambda name, partition: disk.directory,
        )

    def _clear(self) -> None:
        self.disk.segments.clear()

    def _begin(self, begun: Any) -> Any:
        restoring = super()._begin(begun)
        self.disk.store_lineage = restoring.lineage
        return restoring

    def _read_mark(self) -> None: ...

    def _segment(self, directory: Path, meta: Any, partition: int, epoch: int, base: int, *_: Any) -> None:
        self.disk.create(base)


def restore(disk: Disk) -> None:
    """Restore into a disk, as `tiered.restore` does before it opens the store."""
    ModelRestore(disk).run()


def _disk(path: Path) -> Disk:
    return _current[-1].disks[path]


def _listing(directory: Path) -> Listing:
    return Listing(tuple(_disk(directory).names()), ())


def _local_segments(access: ModelAccess, meta: object, directory: Path, writer: object) -> LocalSegments:
    disk = _disk(directory)
    found = []
    for name in disk.names():
        try:
            found.append(access.segment(directory / str(name)))
        except FileNotFoundError:
            continue
    return LocalSegments(disk.read_start(), tuple(found))


def _server_seconds(store: SimStore) -> float:
    clock = Request("what time is it", Footprint((CLOCK,)), lambda _: store.bucket.now)
    return float(store.bucket.world.step(clock))


def _set(name: str) -> Callable[..., None]:
    def write(fs: object, directory: Path, value: object) -> None:
        setattr(_disk(directory), name, value)

    return write


def _get(name: str) -> Callable[[Path], Any]:
    return lambda directory: getattr(_disk(directory), name)


_encoded: dict[Hashable, bytes] = {}
_real_encode_head = commit.encode_head


def _encode_head(head: Head) -> bytes:
    key = tuple(
        tuple(value.items()) if isinstance(value := getattr(head, field.name), dict) else value
        for field in _HEAD_FIELDS
    )
    if key not in _encoded:
        _encoded[key] = _real_encode_head(head)
    return _encoded[key]


_HEAD_FIELDS = fields(Head)


@lru_cache(100_000)
def _decode_document(data: bytes, where: str) -> str:
    return json.dumps(_real_decode_document(data, where=where))


_real_decode_document = bucket_module.decode_document


@contextmanager
def engine() -> Iterator[pytest.MonkeyPatch]:
    """Put the stand-ins in place."""
    with pytest.MonkeyPatch.context() as patch:
        # A pass logs each failure, and here most passes have some.
        patch.setattr(logging.root.manager, "disable", logging.CRITICAL)
        for module in (commit, partition_manifest, recovery):
            patch.setattr(module, "uuid4", lambda: _current[-1].world.uuid())
        patch.setattr(commit, "threading", SimpleNamespace(RLock=ModelLock))
        for module in (claims_module, store_claim):
            patch.setattr(module, "threading", SimpleNamespace(Lock=ModelLock, RLock=ModelLock))
        patch.setitem(Committer.__init__.__kwdefaults__, "sleep", lambda seconds: None)
        patch.setitem(Committer.__init__.__kwdefaults__, "attempts", 2)
        # A claim gives up after as many attempts: how often it came second before does not matter to anybody.
        patch.setattr(commit, "CLAIM_SECONDS", 0.0)
        # Time is the bucket's. A store looks for a restore at its first announcement, and where a story has it look again.
        for timed in (Committer, IntentWatch, IntentHolder):
            patch.setitem(timed.__init__.__kwdefaults__, "monotonic", lambda: 0.0)
        patch.setattr(restoring, "server_seconds", _server_seconds)
        patch.setattr(_RESTORE, "uuid4", lambda: _current[-1].world.uuid())
        patch.setattr(_RESTORE, "_producers", lambda *_: ())  # no object has a footer
        patch.setitem(StoreDocuments.__init__.__kwdefaults__, "sleep", lambda seconds: None)
        patch.setattr(bucket_module, "_ATTEMPTS", 2)
        _remember(patch)
        actions = publish_actions
        patch.setattr(actions, "write_object", write_object)
        patch.setattr(actions, "object_schema", lambda schema: None)
        patch.setattr(
            actions,
            "_rows",
            lambda segment, schema, start, end: segment.records[
                start - segment.header.base_offset : end - segment.header.base_offset
            ],
        )
        patch.setattr(partition_handle, "local_segments", _local_segments)
        for module in (actions, bucket_check):
            patch.setattr(module, "schema_to_text", lambda schema: schema)
        for module in (partition_handle, access_module, snapshot):
            patch.setattr(module, "list_segments", _listing)
        for module in (actions, local_actions, snapshot):
            patch.setattr(module, "read_start_offset", lambda directory: _disk(directory).read_start())
        for module in (claims_module, fences):
            patch.setattr(module, "read_lineage", _get("lineage"))
        patch.setattr(claims_module, "write_lineage", _set("lineage"))
        patch.setattr(fences, "write_fence", _set("fence"))
        patch.setattr(store_claim, "check_conditional_writes", lambda store: None)
        patch.setattr(store_claim, "read_binding", lambda root: SimpleNamespace(claimed=True))
        patch.setattr(
            store_claim,
            "Catalog",
            lambda fs, root: SimpleNamespace(
                root=root, lineage=lambda: _disk(root).store_lineage, features=frozenset
            ),
        )
        patch.setattr(read, "_read_cold", _read_cold)
        patch.setattr(read, "_read_warm", _read_warm)
        patch.setattr(read, "RowAssembler", lambda *args: None)
        whole = _RESTORE
        patch.setattr(
            whole, "FileLock", SimpleNamespace(acquire=lambda *args: SimpleNamespace(release=lambda: None))
        )
        for name in ("_check_empty", "write_document", "write_binding"):
            patch.setattr(whole, name, lambda *args: None)
        patch.setattr(whole, "write_lineage", _set("lineage"))
        patch.setattr(
            whole, "write_start_offset", lambda fs, directory, offset: _disk(directory).write_start(offset)
        )
        for module in (bucket_check, whole):
            patch.setattr(
                module,
                "topic_meta",
                lambda bucket, topic: Meta(topic_id=UUID(topic["id"]), name=topic["name"]),
            )
        yield patch


def _remember(patch: pytest.MonkeyPatch) -> None:
    """Decode the same bytes once: decoding is a function of them, and the search repeats itself a lot."""
    head, page = (
        lru_cache(100_000)(partition_manifest.decode_head),
        lru_cache(100_000)(partition_manifest.decode_page),
    )
    patch.setattr(commit, "encode_head", _encode_head)
    patch.setattr(partition_manifest, "decode_head", lambda data, *, where: head(data, where=where))
    patch.setattr(partition_manifest, "decode_page", lambda data, ref, *, where: page(data, ref, where=where))
    patch.setattr(
        bucket_module, "decode_document", lambda data, *, where: json.loads(_decode_document(data, where))
    )


def small_pages(patch: pytest.MonkeyPatch, entries: int) -> None:
    """Let heads spill into pages after so many entries."""
    patch.setattr(manifest_changes, "INLINE_ENTRIES_MAX", entries)
