"""The scripted life of a topic, and what must hold of it after every step, whatever the bucket did meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

import tiered
from tests.support.clock import Clock
from tests.support.disks import WithoutSyncs
from tests.support.stores import EVICT_US, OFFLOAD_US, stepwise
from tiered.cold.fetch.object_reader import read_object
from tiered.cold.manifest.keys import PartitionKeys, parse_object_name, parse_page_name
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.object_store.protocol import ObjectStore
from tiered.engine.host import Host
from tiered.errors import ColdStorageError, CorruptionError, Fenced, ObjectNotFound, TieredError
from tiered.format.manifest_checks import check_entries, check_head
from tiered.format.manifest_codec import decode_head
from tiered.format.schema import RECORD_SCHEMA
from tiered.reader.tiers import OpenBucket
from tiered.warm.partition_directory import read_start_offset
from tiered.warm.segment_reader import SegmentFile

TAIL_US = 60_000_000
TOPIC = "t"
PARTITIONS = (0, 1)
ATTEMPTS_MAX = 8
_TYPED = (tiered.ColdStorageError, tiered.CorruptionError, tiered.ConfigError, tiered.TopicNotFound)


class Violation(AssertionError):
    """A promise was broken."""


def hold(condition: object, words: str) -> None:
    if not condition:
        raise Violation(words)


class WatchedFiles(WithoutSyncs):
    """Local files without the syncs, which are not the point here; no segment leaves before the bucket has it.

    Attributes
    ----------
    bucket
        The bucket as it is, without faults.
    """

    def __init__(self, bucket: ObjectStore) -> None:
        self.bucket = bucket

    def unlink(self, path: Path) -> None:
        if path.suffix == ".log" and path.exists():
            self._check_evictable(path)
        super().unlink(path)

    def _check_evictable(self, path: Path) -> None:
        """Promise P5, looked up in the bucket itself at the moment of the deletion."""
        segment = SegmentFile.open(path)
        base = path.stem.partition("-")[0]
        if any(item.stem > path.stem for item in path.parent.glob(f"{base}-*.log")):
            return  # superseded by a re-encoded file
        if segment.end_offset <= read_start_offset(path.parent):
            return
        header = segment.header
        cold = PartitionManifest(self.bucket, path.parent.parent.name, header.topic_id, header.partition)
        loaded = cold.load()
        hold(loaded is not None, f"{path} is deleted and nothing is published")
        hold(
            cold.covers(loaded.head, header.segment_id, header.base_offset, segment.end_offset),
            f"{path} is deleted and the head does not cover it",
        )


@dataclass
class Life:
    """Runs the script.

    Attributes
    ----------
    bucket
        The bucket as it is, without faults.
    open_bucket
        Connects to it with faults.
    quiet
        Within it no fault strikes and no operation counts.
    written, deleted
        Every object that was written with its content, every key that was deleted, in order; where known.
    errors, failures
        What the user saw on the way: errors that were raised, and failed actions of reports.
    """

    root: Path
    url: str
    bucket: ObjectStore
    open_bucket: OpenBucket
    quiet: Callable[[], AbstractContextManager[object]] = nullcontext
    written: list[tuple[str, bytes]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    model: dict[int, list[bytes]] = field(default_factory=lambda: {p: [] for p in PARTITIONS})
    start: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    errors: list[TieredError] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    store: tiered.Store | None = None
    _verified: set[str] = field(default_factory=set)

    # -- the script ------------------------------------------------------------------------------

    def run(
        self, *, since: Callable[[], object] = lambda: True, settle: Callable[[], None] = lambda: None
    ) -> None:
        """Play the whole life. All that must hold is checked after every step since a fault, and at the end.

        Parameters
        ----------
        since
            Whether a fault has struck: before, this life is like any other.
        settle
            Lets arrive what is still under way, for the last check.
        """
        try:
            for step in self.steps():
                step()
                if since():
                    self.check()
            settle()
            self._verified.clear()
            self.check()
            self.sweep()
        finally:
            if self.store is not None:
                self.store.close()

    def steps(self) -> list[Callable[[], None]]:
        return [
            self.open,
            lambda: self.append({0: 3, 1: 2}),
            lambda: self.tier(TAIL_US),
            lambda: self.append({0: 2, 1: 1}, roll=True),
            lambda: self.tier(OFFLOAD_US),
            lambda: self.append({0: 2}, roll=True),
            lambda: self.append({0: 1, 1: 2}, roll=True),
            lambda: self.tier(OFFLOAD_US),
            self.read,
            lambda: self.tier(EVICT_US),
            self.read,
            lambda: self.delete_before(6),
            lambda: self.tier(OFFLOAD_US),
            self.reopen,
            lambda: self.append({0: 2, 1: 1}, roll=True),
            lambda: self.tier(EVICT_US),
            lambda: self.tier(EVICT_US),
            self.read,
            self.read_bucket,
        ]

    def open(self) -> None:
        host = Host(clock=self.clock, fs=WatchedFiles(self.bucket), open_bucket=self.open_bucket)
        rules = stepwise(
            offload={"after": "4h", "tail_interval": "10s"}, compress={"codec": "zstd", "after": "off"}
        ).to_json()
        settings = tiered.Settings.model_validate({**rules, "sweep": {"grace": "0s"}})
        self.store = tiered.open(self.root, cold=self.url, settings=settings, host=host)
        self.store.create_topic(TOPIC, partitions=len(PARTITIONS), exist_ok=True)

    def reopen(self) -> None:
        self.opened.close()
        self.open()

    @property
    def opened(self) -> tiered.Store:
        assert self.store is not None
        return self.store

    def append(self, counts: dict[int, int], *, roll: bool = False) -> None:
        for partition, count in counts.items():
            for _ in range(count):
                value = f"{partition}:{len(self.model[partition])}".encode()
                self.insist(lambda v=value, p=partition: self.opened.topic(TOPIC).append(v, partition=p))
                self.model[partition].append(value)
        self.opened.flush()
        self.clock.advance(1)
        if roll:
            self.opened.topic(TOPIC).roll()

    def tier(self, ahead_us: int) -> None:
        """Tier until a pass has nothing left to complain about, which must be soon."""

        def run() -> None:
            report = self.opened.tier((self.clock() + ahead_us) // 1000)
            failed = [words for _, words in report.failed]
            self.failures += failed
            if failed:
                raise ColdStorageError(failed[0])

        self.insist(run)

    def delete_before(self, offset: int) -> None:
        self.insist(lambda: self.opened.topic(TOPIC).delete_before(offset, partition=0))
        self.start[0] = offset

    def read(self) -> None:
        """Scan, wholly and by one column and range: the right rows, or a typed error."""
        topic = self.opened.topic(TOPIC)
        self.insist(lambda: self.compare(topic.scan().to_arrow(), self.start))
        end = len(self.model[1])
        part = lambda: topic.scan(partitions=[1], start_offset=1, end_offset=end - 1, columns=["offset"])  # noqa: E731
        expected = list(range(1, end - 1))
        found = self.insist(lambda: part().to_arrow().column("offset").to_pylist())
        hold(found == expected, f"offsets {found} instead of {expected}")

    def read_bucket(self) -> None:
        """Scan what the bucket alone has."""
        self.insist(self._read_bucket)

    def _read_bucket(self) -> None:
        host = Host(clock=self.clock, open_bucket=self.open_bucket)
        with tiered.open(self.url, host=host) as seen:
            self.compare(seen.topic(TOPIC).scan().to_arrow(), self.start)

    def insist(self, work: Callable[[], object]) -> object:
        """Repeat what fails with a typed error, and keep the errors; faults end, and then it succeeds."""
        for attempt in range(ATTEMPTS_MAX):
            try:
                return work()
            except TieredError as error:
                hold(not isinstance(error, Fenced), f"fenced, and there is nobody else: {error}")
                hold(
                    isinstance(error, _TYPED), f"{type(error).__name__} is not an error of a bucket: {error}"
                )
                self.errors.append(error)
                if attempt == ATTEMPTS_MAX - 1:
                    raise Violation(f"does not recover: {error}") from error
        raise AssertionError

    # -- what must hold --------------------------------------------------------------------------

    def compare(self, table: pa.Table, start: dict[int, int]) -> None:
        """Every record of the model from its start offset on, once and in order."""
        for partition in PARTITIONS:
            rows = table.filter(pa.compute.equal(table["partition"], partition))
            found = list(zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True))
            expected = [*enumerate(self.model[partition])][start[partition] :]
            hold(found == expected, f"partition {partition} has {found}, not {expected}")

    def check(self) -> None:
        """Look at the bucket and at the disk from outside: nothing lost, nothing twice, nothing stray."""
        topic_id = self.opened.topic(TOPIC).opened.meta.topic_id
        for key in self._unnamed():
            hold(self._is_sweepable(key, topic_id), f"nobody knows {key}")
        self._check_writes()
        with self.quiet():
            self.compare(self.opened.topic(TOPIC).scan().to_arrow(), self.start)

    def sweep(self) -> None:
        """Sweep, without grace: what nothing names is gone, what is live is there.

        After faults in the first one, later ones do what it left: also because what the first takes out of the
        manifest is unnamed only since then.
        """

        def run() -> None:
            report = self.opened.sweep()
            if report.problems:
                raise ColdStorageError(report.problems[0])

        self.insist(run)
        with self.quiet():
            run()
            run()
        left = self._unnamed()
        hold(not left, f"the sweep leaves {left}")
        with self.quiet():
            self.compare(self.opened.topic(TOPIC).scan().to_arrow(), self.start)

    def _unnamed(self) -> list[str]:
        """Check what the manifests name; return the keys of all other objects."""
        topic_id = self.opened.topic(TOPIC).opened.meta.topic_id
        named = {"store.json"}
        for partition in PARTITIONS:
            cold = PartitionManifest(self.bucket, TOPIC, topic_id, partition)
            named |= {cold.keys.head, cold.keys.prefix.removesuffix(f"{partition}/") + "topic.json"}
            named |= self._check_manifest(cold)
        return [info.key for info in self.bucket.list("") if info.key not in named]

    def _check_manifest(self, cold: PartitionManifest) -> set[str]:
        """Check one partition's published log, object by object, and return the keys that it names."""
        loaded = cold.load()
        covered = 0
        start = self.start[cold.partition]
        keys: set[str] = set()
        if loaded is not None:
            head = loaded.head
            entries = cold.entries(head)
            problems = check_head(head) + check_entries(head, entries)
            hold(not problems, f"{cold.where(cold.keys.head)}: {problems}")
            hold(head.end_offset <= len(self.model[cold.partition]), "the bucket has records that never were")
            covered = head.end_offset
            keys = {cold.keys.page(ref.name) for ref in head.pages}
            for entry in [*entries, *(e for ref in head.pages for e in cold.load_page(ref))]:
                key = cold.keys.data(entry.name)
                keys.add(key)
                if key not in self._verified:
                    self._check_object(cold, key, entry)
                    self._verified.add(key)
        self._check_local(cold.partition, max(covered, start))
        return keys

    def _check_object(self, cold: PartitionManifest, key: str, entry: object) -> None:
        try:
            rows = pa.Table.from_batches(read_object(self.bucket, key, entry, RECORD_SCHEMA))
        except (ObjectNotFound, CorruptionError) as error:
            raise Violation(f"a live object is gone or damaged: {error}") from error
        found = list(zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True))
        expected = [*enumerate(self.model[cold.partition])][entry.base_offset : entry.end_offset]
        hold(found == expected, f"{key} holds {found}, not {expected}")

    def _check_local(self, partition: int, covered: int) -> None:
        """What the bucket does not have is on the disk, without a gap."""
        directory = self.root / "topics" / TOPIC / str(partition)
        bases = sorted(int(path.stem.split("-")[0]) for path in directory.glob("*.log"))
        if not bases:
            hold(not self.model[partition], f"partition {partition} has no file left")
            return
        hold(bases[0] <= covered, f"offsets {covered} to {bases[0]} are neither local nor published")

    def _is_sweepable(self, key: str, topic_id: object) -> bool:
        """Whether a sweep knows by its name what an object that nobody names is."""
        for partition in PARTITIONS:
            keys = PartitionKeys.of(TOPIC, topic_id, partition)
            if key.startswith(keys.data_prefix):
                parsed = parse_object_name(key.removeprefix(keys.data_prefix))
                head = PartitionManifest(self.bucket, TOPIC, topic_id, partition).load()
                return parsed is not None and head is not None and parsed.epoch <= head.head.epoch
            if key.startswith(keys.pages_prefix):
                return parse_page_name(key.removeprefix(keys.pages_prefix)) is not None
        return key.startswith("probe/")

    def _check_writes(self) -> None:
        """No name is used twice, every head follows the one before, and nothing but the probe is deleted."""
        contents: dict[str, bytes] = {}
        heads: dict[str, list[bytes]] = {}
        for key, content in self.written:
            if key.endswith("/head.json"):
                heads.setdefault(key, []).append(content)
            elif "/data/" in key or "/pages/" in key:
                hold(contents.setdefault(key, content) == content, f"{key} was used for two contents")
        for key, versions in heads.items():
            for before, after in pairwise(decode_head(content, where=key) for content in versions):
                hold(after.previous_commit_ids[:1] == (before.commit_id,), f"{key} lost a commit")
                hold(after.epoch >= before.epoch, f"the epoch of {key} went back")
                hold(after.end_offset >= before.end_offset, f"the end of {key} went back")
        stray = [key for key in self.deleted if not key.startswith("probe/")]
        hold(not stray, f"deleted without a sweep: {stray}")
