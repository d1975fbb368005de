"""The sweep deletes every orphan and never a live object, whoever stalls, wakes, claims or restores meanwhile."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.cold.swept_store import GRACE, KEYS, Process, SweptStore, data_names
from tests.support.manifest_values import STORE, TOPIC, MemoryPages, empty_head, entry
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.keys import ObjectName, topic_key
from tiered.cold.manifest.leases import server_seconds
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.cold.object_store.connect import open_object_store
from tiered.cold.object_store.protocol import ObjectInfo
from tiered.cold.upkeep.sweep import PartitionSweeper, PartSweep, SweepRules, plan_sweep, sweep_deleted_topic
from tiered.errors import ColdStorageError, CorruptionError, Fenced, TieredError
from tiered.format import manifest_changes
from tiered.format.manifest import Head, ObjectEntry
from tiered.format.manifest_changes import trim
from tiered.format.manifest_checks import check_head
from tiered.format.manifest_codec import decode_head


@pytest.fixture
def store() -> SweptStore:
    return SweptStore()


@pytest.fixture
def one(store: SweptStore) -> Process:
    process = Process(store)
    process.committer.claim()
    return process


def head_of(store: SweptStore) -> Head:
    return decode_head(store.objects[KEYS.head][0], where=KEYS.head)


# -- the plan --------------------------------------------------------------------------------------


def listed(key: str, modified: float = 0.0) -> ObjectInfo:
    return ObjectInfo(key, 1, "e", modified)


def plan(infos: list[ObjectInfo], named: set[str] = frozenset(), **changes: object):  # type: ignore[assignment]
    values: dict[str, object] = {
        "keys": KEYS, "epoch": 5, "in_flight": frozenset(), "marks": {}, "head_seconds": 0.0,
    }  # fmt: skip
    return plan_sweep(infos, named, SweepRules(1000.0, GRACE), **{**values, **changes})  # type: ignore[arg-type]


def name_of(epoch: int = 5, base: int = 0) -> str:
    return str(ObjectName(base, epoch, uuid4()))


def test_only_names_of_our_own_making_are_ever_deleted() -> None:
    """Whatever else somebody put below the prefix stays, and so does what a later epoch made."""
    page, data = KEYS.page(f"{uuid4()}.json.zst"), KEYS.data(name_of())
    foreign = [
        KEYS.head, KEYS.prefix + "notes.txt", KEYS.data("part-0.parquet"), KEYS.page("x.json.zst"),
        KEYS.data_prefix + "deeper/" + name_of(), KEYS.prefix + name_of(), KEYS.pages_prefix + name_of(),
        KEYS.data(f"{uuid4()}.json.zst"), KEYS.data(name_of(6)), "t/other/0/data/" + name_of(),
    ]  # fmt: skip
    found = plan([listed(key) for key in [page, data, *foreign]])
    assert {item.key for item in found.due} == {page, data}
    assert found.waiting == found.left == ()


@given(st.data())
def test_what_is_due_is_exactly_what_was_an_orphan_for_the_grace_period(data: st.DataObject) -> None:
    times = st.floats(0, 1000)
    keys = [KEYS.data(name_of(data.draw(st.integers(1, 7)))) for _ in range(6)]
    infos = [listed(key, data.draw(times)) for key in keys]
    named = set(data.draw(st.lists(st.sampled_from(keys))))
    in_flight = {key.rpartition("/")[2] for key in data.draw(st.lists(st.sampled_from(keys)))}
    marks = data.draw(st.dictionaries(st.sampled_from(keys), times))
    head_seconds = data.draw(times)
    found = plan(infos, named, in_flight=in_flight, marks=marks, head_seconds=head_seconds)
    for info in infos:
        name = info.key.rpartition("/")[2]
        orphan = info.key not in named and name not in in_flight and int(name.split("-")[1]) <= 5
        since = max(info.modified_seconds, marks.get(info.key, head_seconds))
        due = orphan and 1000.0 - since >= GRACE
        assert (info.key in {item.key for item in found.due}) == due
        assert (info.key in {item.key for item in found.waiting}) == (orphan and not due)
    assert [item.since_seconds for item in found.due] == sorted(item.since_seconds for item in found.due)


def test_the_limit_of_a_run_takes_the_oldest() -> None:
    infos = [listed(KEYS.data(name_of()), float(age)) for age in (30, 10, 20, 950)]
    rules = SweepRules(1000.0, GRACE, objects_max=2)
    found = plan_sweep(infos, set(), rules, keys=KEYS, epoch=5, in_flight=set(), marks={}, head_seconds=0.0)
    assert [item.since_seconds for item in found.due] == [10, 20]
    assert [item.since_seconds for item in found.left] == [30]
    assert [item.since_seconds for item in found.waiting] == [950]


@pytest.mark.parametrize("start", range(12))
def test_trimming_drops_what_lies_wholly_below_the_start_offset(start: int) -> None:
    pages = MemoryPages()
    first = pages.save_page(tuple(entry(i, i + 2, i + 1) for i in range(0, 8, 2)))
    head = empty_head(pages=(first,), inline=(entry(8, 12, 9),), end_offset=12, schemas={0: "x"})
    moved = manifest_changes.raise_start_offset(head, start)
    trimmed = trim(moved, pages)
    assert check_head(trimmed) == []
    assert all(item.end_offset > start for item in pages.all_entries(trimmed))
    live = [item for item in pages.all_entries(moved) if item.end_offset > start]
    assert pages.all_entries(trimmed) == live
    assert trim(trimmed, pages) == trimmed


# -- one run ---------------------------------------------------------------------------------------


def test_orphans_go_after_their_grace_and_live_objects_stay(store: SweptStore, one: Process) -> None:
    live = one.append()
    orphan = one.upload()
    one.committer.release([orphan.name])
    assert (one.sweep().waiting, store.deleted) == (1, [])
    store.now += GRACE - 1
    assert one.sweep().waiting == 1
    store.now += 1
    assert one.sweep().deleted == (KEYS.data(orphan.name),)
    assert data_names(store) == {live.name}
    assert one.marks == {}


def test_grace_counts_from_when_an_object_was_replaced_not_from_its_upload(
    store: SweptStore, one: Process
) -> None:
    """An object of last year that was merged a second ago is in readers' snapshots."""
    old = one.upload(segment=7)
    one.publish(old)
    store.now += 365 * 86400
    whole = one.upload(base=0, segment=7)
    one.publish(whole)
    assert (one.sweep().deleted, one.sweep().waiting) == ((), 1)
    store.now += GRACE - 1
    one.append()  # a head written later does not begin the grace again
    assert one.sweep().deleted == ()
    store.now += 1
    assert one.sweep().deleted == (KEYS.data(old.name),)
    assert whole.name in data_names(store)


def test_an_object_in_flight_is_left_alone_however_old_it_is(store: SweptStore, one: Process) -> None:
    """A slow upload of the same process, which a multipart upload's date makes older still."""
    slow = one.upload()
    store.now += 10 * GRACE
    one.sweep()
    store.now += 10 * GRACE
    assert one.sweep().deleted == ()
    one.publish(slow)
    assert data_names(store) == {slow.name}


def test_a_fenced_process_loses_its_upload_and_cannot_publish_it(store: SweptStore, one: Process) -> None:
    slow = one.upload()
    two = Process(store)
    two.committer.claim()
    store.now += 2 * GRACE
    assert two.sweep().deleted == (KEYS.data(slow.name),)
    with pytest.raises(Fenced):
        one.publish(slow)
    assert head_of(store).inline == ()


def test_nothing_is_swept_while_a_commit_may_still_land(store: SweptStore, one: Process) -> None:
    """What it names may become live; once it is settled, one of the two is an orphan."""
    first = one.upload()
    store.fault = lambda verb, key: "delayed" if (verb, key) == ("put", KEYS.head) else None
    with pytest.raises(ColdStorageError):
        one.publish(first)
    assert one.committer.unsettled
    store.now += 10 * GRACE
    with pytest.raises(ColdStorageError):
        one.sweep()
    assert store.deleted == []
    store.fault = lambda verb, key: None
    store.delayed[0]()  # it lands after all
    one.sweep()
    store.now += 10 * GRACE
    assert one.sweep().deleted == ()
    assert [item.name for item in head_of(store).inline] == [first.name]


def test_nothing_is_swept_where_a_commit_gets_lost_during_the_run(
    store: SweptStore, one: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another thread: its page is listed and not named, and becomes live when the PUT lands."""
    monkeypatch.setattr(manifest_changes, "INLINE_ENTRIES_MAX", 1)
    one.grace = 0.0
    one.append()
    new = one.upload()

    def meet(verb: str, key: str) -> None:
        if verb == "list":
            store.meet = lambda verb, key: None
            store.fault = lambda verb, key: "delayed" if (verb, key) == ("put", KEYS.head) else None
            with pytest.raises(ColdStorageError):
                one.publish(new)
            store.fault = lambda verb, key: None

    store.meet = meet
    with pytest.raises(ColdStorageError, match="may still land"):
        one.sweep()
    assert store.deleted == []
    for land in store.delayed:
        land()
    reader = PartitionManifest(store, "t", TOPIC, 0)
    assert new in reader.entries(head_of(store))


def test_a_commit_that_never_lands_leaves_an_orphan(store: SweptStore, one: Process) -> None:
    lost = one.upload()
    store.fault = lambda verb, key: "lost" if (verb, key) == ("put", KEYS.head) else None
    with pytest.raises(ColdStorageError):
        one.publish(lost)
    store.fault = lambda verb, key: None
    one.sweep()
    store.now += GRACE
    assert one.sweep().deleted == (KEYS.data(lost.name),)


@pytest.mark.parametrize("moment", ["list", "listed", "stat"])
def test_an_object_published_during_the_run_is_live(store: SweptStore, one: Process, moment: str) -> None:
    """Uploaded before the listing or during it, published before the head is read or after it."""
    one.grace = 0.0
    early = one.upload()

    def meet(verb: str, key: str) -> None:
        if verb == moment:
            store.meet = lambda verb, key: None
            one.publish(early)
            one.append()

    store.meet = meet
    one.sweep()
    assert data_names(store) >= {item.name for item in head_of(store).inline}
    assert len(head_of(store).inline) == 2
    assert store.deleted == []


def test_a_sweeper_that_stalled_deletes_nothing_more(
    store: SweptStore, one: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others claimed meanwhile: it stops before its next batch, and what it had deleted was an orphan."""
    monkeypatch.setattr("tiered.cold.upkeep.sweep._BATCH", 1)
    one.grace = 0.0
    orphans = [one.upload() for _ in range(3)]
    one.committer.release([item.name for item in orphans])

    def meet(verb: str, key: str) -> None:
        if verb == "delete":
            Process(store).committer.claim(begin_lineage=True)

    store.meet = meet
    with pytest.raises(Fenced):
        one.sweep()
    assert len(store.deleted) == 1


def test_a_sweeper_of_a_lower_epoch_deletes_nothing(store: SweptStore, one: Process) -> None:
    one.grace = 0.0
    one.committer.release([one.upload().name])
    Process(store).committer.claim()
    with pytest.raises(Fenced):
        one.sweep()
    assert store.deleted == []


def test_an_object_that_may_not_be_deleted_holds_up_no_other(
    store: SweptStore, one: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a legal hold. In a busy partition the others' grace began again at every run."""
    monkeypatch.setattr("tiered.cold.upkeep.sweep._BATCH", 1)
    held = one.upload()
    one.committer.release([held.name])

    def meet(verb: str, key: str) -> None:
        if (verb, key) == ("delete", KEYS.data(held.name)):
            raise ColdStorageError("403")

    store.meet = meet
    store.now += GRACE
    one.sweep()
    other = one.upload()
    one.committer.release([other.name])
    for _ in range(4):
        store.now += 0.6 * GRACE
        one.append()
        found = one.sweep()
        assert ("403" in found.problem) == (found.left == 1)
    assert found.left == 1
    assert held.name in data_names(store)
    assert store.deleted == [KEYS.data(other.name)]


def test_a_bucket_that_goes_away_ends_the_run_and_what_is_left_keeps_its_marks(
    store: SweptStore, one: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no object that may not be deleted: each further one would be waited for."""
    monkeypatch.setattr("tiered.cold.upkeep.sweep._BATCH", 1)
    orphans = [one.upload() for _ in range(3)]
    one.committer.release([item.name for item in orphans])
    store.now += GRACE
    asked: list[str] = []

    def meet(verb: str, key: str) -> None:
        if verb == "delete":
            asked.append(key)
            raise ColdStorageError("no route to host", retryable=True)

    store.meet = meet
    with pytest.raises(ColdStorageError, match="no route"):
        one.sweep()
    assert len(asked) == 1
    assert len(one.marks) == 3


@pytest.mark.parametrize("broken", ["head", "no head", "page", "no page", "list", "page 503"])
def test_what_cannot_be_read_means_that_nothing_is_deleted(
    store: SweptStore, one: Process, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """P10: unreadable is not absent, for the head, a page and the listing."""
    monkeypatch.setattr(manifest_changes, "INLINE_ENTRIES_MAX", 2)
    one.grace = 0.0
    for _ in range(8):
        one.append()
    one.committer.release([one.upload().name])
    page = KEYS.page(head_of(store).pages[0].name)
    fresh = Process(store, grace=0.0)
    fresh.committer.claim()
    key = KEYS.head if "head" in broken else page
    if broken.startswith("no "):
        del store.objects[key]
    elif broken in ("head", "page"):
        data, etag = store.objects[key]
        store.objects[key] = (data[:20] + bytes([data[20] ^ 1]) + data[21:], etag)
    else:

        def meet(verb: str, asked: str) -> None:
            if verb == "list" if broken == "list" else (verb, asked) == ("get", page):
                raise ColdStorageError("503", retryable=True)

        store.meet = meet
    with pytest.raises((ColdStorageError, CorruptionError)):
        fresh.sweep()
    assert store.deleted == []


def test_pages_that_were_replaced_go_and_those_that_are_named_stay(
    store: SweptStore, one: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_changes, "INLINE_ENTRIES_MAX", 2)
    one.grace = 0.0
    entries = [one.append() for _ in range(8)]
    before = {key for key in store.objects if "/pages/" in key}
    one.committer.raise_start_offset(2)  # in the middle of the first page
    swept = one.sweep()
    named = {KEYS.page(ref.name) for ref in head_of(store).pages}
    assert {key for key in store.objects if "/pages/" in key} == named
    assert len(before - named) >= 1
    assert data_names(store) == {item.name for item in entries[2:]}
    assert set(swept.deleted) >= {KEYS.data(item.name) for item in entries[:2]}
    assert one.partition.entries(head_of(store)) == entries[2:]


def test_a_preview_is_what_the_run_then_does_and_changes_nothing(store: SweptStore, one: Process) -> None:
    one.append()
    for _ in range(3):
        one.committer.release([one.upload().name])
    store.now += GRACE
    before = dict(store.objects)
    sweeper = PartitionSweeper(one.partition, SweepRules(store.now, GRACE), {})
    preview = sweeper.preview()
    assert (store.objects, sweeper.marks) == (before, {})
    assert len(preview.deleted) == 3
    assert one.sweep() == preview


def test_a_preview_of_a_partition_without_a_head_is_empty(store: SweptStore) -> None:
    store.put(KEYS.data(name_of()), b"x")
    sweeper = PartitionSweeper(PartitionManifest(store, "t", TOPIC, 0), SweepRules(1e9, 0.0), {})
    assert sweeper.preview().deleted == ()


def test_partition_1_does_not_reach_into_partition_10(store: SweptStore) -> None:
    """A prefix without its slash would: everything of 10 is unnamed by the head of 1."""
    ten = Committer(PartitionManifest(store, "t", TOPIC, 10), STORE, clock=lambda: 1)
    ten.claim()
    key = ten.partition.keys.data(ten.new_object_name(0))
    store.put(key, b"x")
    partition = PartitionManifest(store, "t", TOPIC, 1)
    committer = Committer(partition, STORE, clock=lambda: 1)
    committer.claim()
    store.now += 1e9
    swept = PartitionSweeper(partition, SweepRules(store.now, 0.0), {}).sweep(committer)
    assert swept.deleted == ()
    assert key in store.objects


# -- deleted topics --------------------------------------------------------------------------------


def test_a_deleted_topic_goes_after_its_grace_but_for_its_tombstone(store: SweptStore, one: Process) -> None:
    bucket = StoreDocuments(store)
    bucket.put_topic({"name": "t", "id": str(TOPIC), "partitions": 1, "schemas": []})
    one.append()
    other = topic_key("t", UUID(int=99))
    store.put(other, b"x")
    store.now += 10 * GRACE
    bucket.tombstone("t", TOPIC, deleted_us=1)

    def sweep(**options: bool) -> PartSweep:
        return sweep_deleted_topic(
            store, "t", TOPIC, SweepRules(store.now, GRACE), **{"dry_run": False, **options}
        )

    assert (sweep().deleted, sweep().waiting) == ((), 2)
    store.now += GRACE
    late = one.upload()  # by a tierer that knows nothing of the deletion
    assert len(sweep(dry_run=True).deleted) == 2
    assert store.deleted == []
    assert len(sweep().deleted) == 2
    assert set(store.objects) == {topic_key("t", TOPIC), other, KEYS.data(late.name)}
    with pytest.raises(ColdStorageError):
        one.publish(late)
    store.now += GRACE
    sweep()
    assert set(store.objects) == {topic_key("t", TOPIC), other}
    with pytest.raises(TieredError):
        bucket.put_topic({"name": "t", "id": str(TOPIC), "partitions": 1, "schemas": []})


# -- the clock -------------------------------------------------------------------------------------


def test_the_clock_is_the_servers(store: SweptStore) -> None:
    store.now = 42.0
    assert server_seconds(store) == 42.0
    assert store.objects == {}


def test_the_clock_of_a_real_server(new_bucket: str, s3_options: object) -> None:
    backend = open_object_store(f"s3://{new_bucket}/p", s3_options)  # type: ignore[arg-type]
    first = server_seconds(backend)
    assert server_seconds(backend) >= first > 1.7e9
    assert list(backend.list("")) == []
    backend.close()


# -- every interleaving that hypothesis finds ------------------------------------------------------

# Most steps are those of whoever holds the highest epoch, or nearly all would only be refused.
PROCESSES = st.sampled_from(["owner", "owner", "owner", 0, 1])
FAULTS = st.lists(st.sampled_from([None, None, "lost", "answer lost", "delayed", "repeated"]), max_size=4)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["list", "listed", "stat", "delete"]),
        st.sampled_from(
            ["claim", "restore", "append", "upload", "publish", "replace", "expire", "land", "wait"]
        ),
        PROCESSES,
    ),
    max_size=3,
)


class Sweeps(RuleBasedStateMachine):
    """Two processes claim, upload slowly, publish, replace, expire and sweep; sweeps are interrupted anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.store = SweptStore()
        self.processes = [Process(self.store) for _ in range(2)]
        self.uploads: dict[int, list[ObjectEntry]] = {0: [], 1: []}
        self.heads: list[tuple[float, Head]] = []
        self._limit = manifest_changes.INLINE_ENTRIES_MAX
        manifest_changes.INLINE_ENTRIES_MAX = 4

    def teardown(self) -> None:
        manifest_changes.INLINE_ENTRIES_MAX = self._limit

    @initialize()
    def begin(self) -> None:
        self.processes[0].committer.claim()
        self.look()

    def look(self) -> None:
        """Remember each head with when it was written; a test's step can publish several."""
        heads = [data for key, data in self.store.writes if key == KEYS.head]
        for data in heads[len(self.heads) :]:
            self.heads.append((self.store.now, decode_head(data, where=KEYS.head)))

    def index(self, who: int | str) -> int:
        return max((0, 1), key=lambda i: self.processes[i].committer.epoch) if isinstance(who, str) else who

    def act(self, kind: str, who: int | str) -> None:
        process, waiting = self.processes[self.index(who)], self.uploads[self.index(who)]
        try:
            if kind == "wait":
                self.store.now += GRACE / 2
            elif kind == "land" and self.store.delayed:
                self.store.delayed.pop(0)()
                self.store.modified[KEYS.head] = self.store.now
            elif kind in ("claim", "restore"):
                process.committer.claim(begin_lineage=kind == "restore")
            elif process.committer.epoch:
                self.change(kind, process, waiting)
        except (Fenced, ColdStorageError):
            pass
        self.look()

    def change(self, kind: str, process: Process, waiting: list[ObjectEntry]) -> None:
        head = head_of(self.store)
        if kind == "append":
            process.append()
        elif kind == "upload":
            waiting.append(process.upload())
        elif kind == "publish" and waiting:
            process.publish(waiting.pop(0))
        elif kind == "replace" and head.inline:
            old = head.inline[0]
            name = process.committer.new_object_name(old.base_offset)
            self.store.put(KEYS.data(name), b"x")
            ids = tuple(item.int for item in old.segment_ids)
            process.publish(entry(old.base_offset, old.end_offset, ids, name=name))
        elif kind == "expire":
            process.committer.raise_start_offset((head.start_offset + head.end_offset + 1) // 2)

    @rule(kind=st.sampled_from(["append", "append", "upload", "publish", "replace", "expire"]), who=PROCESSES)
    def step(self, kind: str, who: int | str) -> None:
        self.act(kind, who)

    @rule(kind=st.sampled_from(["claim", "restore"]), who=PROCESSES)
    def claim(self, kind: str, who: int | str) -> None:
        self.act(kind, who)

    @rule(kind=st.sampled_from(["append", "replace", "claim", "expire"]), who=PROCESSES, kinds=FAULTS)
    def trouble(self, kind: str, who: int | str, kinds: list[str | None]) -> None:
        left = iter(kinds)
        self.store.fault = lambda verb, key: next(left, None) if key == KEYS.head else None
        self.act(kind, who)
        self.store.fault = lambda verb, key: None

    @precondition(lambda self: self.store.delayed)
    @rule()
    def land_late(self) -> None:
        self.act("land", 0)

    @rule(seconds=st.sampled_from([1.0, GRACE, 2 * GRACE]))
    def wait(self, seconds: float) -> None:
        self.store.now += seconds

    @rule(who=PROCESSES, interruptions=ACTIONS)
    def sweep(self, who: int | str, interruptions: list[tuple[str, str, int | str]]) -> None:
        process = self.processes[self.index(who)]
        if not process.committer.epoch:
            return
        left = list(interruptions)

        def meet(verb: str, key: str) -> None:
            if left and left[0][0] == verb:
                _, kind, other = left.pop(0)
                self.store.meet = lambda verb, key: None
                self.act(kind, other)
                self.store.meet = meet

        self.store.meet = meet
        try:
            process.sweep()
        except (Fenced, ColdStorageError):
            pass
        finally:
            self.store.meet = lambda verb, key: None
        self.look()

    @invariant()
    def what_a_snapshot_can_hold_is_there(self) -> None:
        """Of the head that stands now, and of every head that stood within the grace period."""
        ends = [written for written, _ in self.heads[1:]] + [float("inf")]
        reader = PartitionManifest(self.store, "t", TOPIC, 0)
        for (_, head), end in zip(self.heads, ends, strict=True):
            if self.store.now - end >= GRACE:
                continue
            for item in reader.entries(head):
                assert KEYS.data(item.name) in self.store.objects, "an object in a reader's snapshot is gone"

    @invariant()
    def a_run_without_trouble_leaves_no_orphan(self) -> None:
        if len(self.heads) % 5:
            return
        after = SweptStore()
        after.objects, after.modified = dict(self.store.objects), dict(self.store.modified)
        after._versions, after.now = self.store._versions, self.store.now + 1
        fresh = Process(after)
        fresh.committer.claim()
        fresh.sweep()
        after.now += GRACE
        fresh.sweep()
        head = head_of(after)
        pages = {KEYS.page(ref.name) for ref in head.pages}
        live = {KEYS.data(item.name) for item in fresh.partition.entries(head)}
        assert set(after.objects) == {KEYS.head} | pages | live


TestSweeps = Sweeps.TestCase
TestSweeps.settings = settings(
    max_examples=settings.default.max_examples, stateful_step_count=50, deadline=None
)
