"""Claims and commits under every fault a bucket can show: one line of commits, nothing acknowledged is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.manifest_values import STORE, TOPIC, entry
from tests.support.memory_store import MemoryStore
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.keys import PartitionKeys, parse_object_name, parse_page_name
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.object_store.protocol import Versioned
from tiered.cold.upkeep.rebuild import publish_rebuilt
from tiered.errors import ColdStorageError, CorruptionError, Fenced
from tiered.format import manifest_changes
from tiered.format.manifest import Head, ObjectEntry, Origin
from tiered.format.manifest_changes import add_objects, add_schemas
from tiered.format.manifest_checks import check_entries, check_head
from tiered.format.manifest_codec import decode_head, encode_head

HEAD = PartitionKeys.of("t", TOPIC, 0).head


class Clock:
    def __init__(self) -> None:
        self.now_us = 1_000_000
        self.slept: list[float] = []

    def __call__(self) -> int:
        return self.now_us

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def committer(store: MemoryStore, clock: Clock | None = None, store_id: UUID = STORE) -> Committer:
    clock = clock or Clock()
    return Committer(
        PartitionManifest(store, "t", TOPIC, 0), store_id, clock=clock, sleep=clock.sleep, attempts=3
    )


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def faults(store: MemoryStore, *kinds: str | None, verb: str = "put", key: str = HEAD) -> None:
    """Let the next requests of one kind meet these faults, one each."""
    left = iter(kinds)

    def fault(asked: str, at: str) -> str | None:
        return next(left, None) if (asked, at) == (verb, key) else None

    store.fault = fault


def published(store: MemoryStore) -> Head:
    return decode_head(store.objects[HEAD][0], where=HEAD)


def append(count: int, segment: int = 1) -> object:
    """A change that extends the log from wherever it ends."""

    def change(head: Head) -> Head:
        new = entry(head.end_offset, head.end_offset + count, segment)
        return add_objects(add_schemas(head, {0: "x"}), [new], PAGES)

    return change


class NoPages:
    def load_page(self, ref: object) -> tuple[ObjectEntry, ...]:
        raise AssertionError("no page here")

    save_page = load_page


PAGES = NoPages()


def test_a_claim_comes_first_and_begins_the_first_lineage(store: MemoryStore) -> None:
    one = committer(store)
    with pytest.raises(RuntimeError):
        one.commit(append(3))
    assert one.claim(start_offset=7) == 1
    head = published(store)
    assert (head.epoch, head.lineages, head.start_offset, head.end_offset) == (1, ((1, 7),), 7, 7)
    assert committer(store).claim() == 2
    assert published(store).lineages == ((1, 7),)
    assert committer(store).claim(begin_lineage=True) == 3
    assert published(store).lineages == ((1, 7), (3, 7))


def test_a_lineage_says_from_which_log_it_went_on_and_never_before_that_was_published(
    store: MemoryStore,
) -> None:
    """Also where there is no head yet, or the clock of another host is behind."""
    committer(store).claim(begin_lineage=True, start_offset=7)
    head = published(store)
    assert (head.epoch, head.lineages) == (2, ((1, 7), (2, 7)))
    one = committer(store)
    one.claim()
    published_us = one.commit(append(3)).committed_us
    behind = Clock()
    behind.now_us = published_us - 60
    committer(store, behind).claim(begin_lineage=True)
    first, second = published(store).origins
    assert first == Origin(2, first.began_us, 1, 7, 7)
    assert second == Origin(4, published_us, 2, 10, 7)


def test_a_claim_from_before_a_restore_is_fenced(store: MemoryStore) -> None:
    committer(store).claim()
    committer(store).claim(begin_lineage=True)
    before = store.objects[HEAD]
    with pytest.raises(Fenced, match="lineage 2"):
        committer(store).claim(lineage_epoch=1)
    assert store.objects[HEAD] == before
    assert committer(store).claim(lineage_epoch=2) == 3


def test_a_lost_head_is_never_begun_again(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    del store.objects[HEAD]
    with pytest.raises(ColdStorageError, match="rebuild") as caught:
        committer(store).claim(lineage_epoch=1)
    assert not caught.value.retryable
    with pytest.raises(ColdStorageError, match="missing|404"):
        one.commit(append(3))
    with pytest.raises(ColdStorageError, match="rebuild"):
        one.claim()
    assert store.objects == {}


def test_another_store_cannot_commit_here(store: MemoryStore) -> None:
    committer(store).claim()
    other = committer(store, store_id=UUID(int=77))
    with pytest.raises(ColdStorageError, match="belongs to store"):
        other.claim()


@pytest.mark.parametrize("fault", ["lost", "answer lost", "repeated"])
def test_a_commit_is_published_once_whatever_becomes_of_its_answer(store: MemoryStore, fault: str) -> None:
    clock = Clock()
    one = committer(store, clock)
    one.claim()
    faults(store, fault)
    head = one.commit(append(5))
    assert published(store) == head
    assert head.end_offset == 5
    assert len([key for key, _ in store.writes if key == HEAD]) == 2
    assert not one.unsettled
    assert len(clock.slept) == (1 if fault == "lost" else 0)


@pytest.mark.parametrize("damaged", [True, False], ids=["damaged", "missing"])
@pytest.mark.parametrize("fault", ["lost", "answer lost", "repeated"])
def test_a_rebuilt_head_that_was_published_is_said_to_be(
    store: MemoryStore, fault: str, damaged: bool
) -> None:
    """The answer is lost, or the SDK repeats the request and meets its own success."""
    one = committer(store)
    one.claim()
    planned = replace(one.commit(append(5)), epoch=1000, commit_id="ab" * 16, previous_commit_ids=())
    del store.objects[HEAD]
    if damaged:
        store.objects[HEAD] = b"?", "etag"
    faults(store, fault)
    if fault == "lost":
        with pytest.raises(ColdStorageError, match="no answer"):
            publish_rebuilt(one.partition, planned, Clock())
        assert (HEAD in store.objects) == damaged
    else:
        assert bool(publish_rebuilt(one.partition, planned, Clock())) == damaged
        assert published(store).commit_id == planned.commit_id


def test_the_repeated_put_is_identical(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    sent = []
    put = store.put

    def spy(key: str, data: bytes, **how: object) -> str:
        sent.append((key, bytes(data), tuple(how.items())))
        return put(key, data, **how)  # type: ignore[arg-type]

    store.put = spy  # type: ignore[method-assign]
    faults(store, "lost", "lost")
    one.commit(append(5))
    assert len(sent) == 3
    assert len(set(sent)) == 1


def test_one_commit_is_one_request(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    store.requests.clear()
    one.commit(append(1))
    one.commit(append(1))
    assert store.requests == []
    writes = len(store.writes)
    assert one.commit(lambda head: head) == published(store)
    assert (store.requests, len(store.writes)) == ([], writes)


def test_an_unknown_outcome_says_so_and_the_next_commit_settles_it(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    faults(store, "lost", "delayed", "lost")
    with pytest.raises(ColdStorageError, match="outcome unknown") as caught:
        one.commit(append(5, segment=1))
    assert caught.value.retryable
    assert one.unsettled
    assert published(store).end_offset == 0
    head = one.commit(append(7, segment=2))
    assert not one.unsettled
    store.delayed.pop()()
    assert published(store) == head
    assert [e.segment_ids for e in head.inline] == [(UUID(int=2),)]


def test_an_unknown_commit_that_landed_is_built_upon(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    faults(store, "lost", "delayed", "lost")
    with pytest.raises(ColdStorageError, match="outcome unknown"):
        one.commit(append(5, segment=1))
    store.delayed.pop()()
    head = one.commit(append(7, segment=2))
    assert [e.segment_ids[0].int for e in head.inline] == [1, 2]


def test_an_unknown_commit_that_lands_between_read_and_write(store: MemoryStore) -> None:
    """The next commit has read the old head already: its PUT meets 412 and is planned again."""
    one = committer(store)
    one.claim()
    faults(store, "delayed", "lost", "lost")
    with pytest.raises(ColdStorageError, match="outcome unknown"):
        one.commit(append(5, segment=1))
    late = store.delayed.pop()

    def change(head: Head) -> Head:
        late()
        return append(7, segment=2)(head)  # type: ignore[operator]

    head = one.commit(change)
    assert [e.segment_ids[0].int for e in head.inline] == [1, 2]
    assert published(store) == head


def test_settling_makes_an_unknown_commit_impossible_or_finds_it(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    faults(store, "delayed", "lost", "lost")
    with pytest.raises(ColdStorageError):
        one.commit(append(5))
    head = one.settle()
    assert (head.end_offset, one.unsettled) == (0, False)
    store.delayed.pop()()
    assert published(store) == head


def test_an_interrupt_leaves_the_outcome_unknown(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    put = store.put

    def interrupted(*args: object, **how: object) -> str:
        put(*args, **how)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    store.put = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        one.commit(append(5))
    assert one.unsettled
    store.put = put  # type: ignore[method-assign]
    assert one.commit(append(2, segment=2)).end_offset == 7
    assert not one.unsettled


def test_a_refusal_for_good_is_raised_as_it_is(store: MemoryStore) -> None:
    clock = Clock()
    one = committer(store, clock)
    one.claim()

    def refuse(*args: object, **how: object) -> str:
        raise ColdStorageError("403 AccessDenied")

    store.put = refuse  # type: ignore[method-assign]
    with pytest.raises(ColdStorageError, match="403"):
        one.commit(append(1))
    assert clock.slept == []


def test_a_head_that_cannot_be_read_is_not_absent(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    for fault in ("lost", "lost", "lost"):
        faults(store, fault, verb="get")
        with pytest.raises(ColdStorageError, match="no answer"):
            committer(store).claim()
    data, etag = store.objects[HEAD]
    store.objects[HEAD] = (data[:-9], etag)
    with pytest.raises(CorruptionError):
        committer(store).claim()
    assert store.objects[HEAD] == (data[:-9], etag)


def test_reading_back_is_tried_again_too(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    kinds = iter(["put", "get"])
    state = {"next": next(kinds)}

    def fault(verb: str, key: str) -> str | None:
        if verb == state["next"]:
            state["next"] = next(kinds, "")
            return "answer lost"
        return None

    store.fault = fault
    head = one.commit(append(5))
    assert published(store) == head
    assert len(store.writes) == 2


def test_the_one_with_the_lower_epoch_is_fenced_and_changes_nothing(store: MemoryStore) -> None:
    old, new = committer(store), committer(store)
    old.claim()
    old.commit(append(3))
    new.claim()
    before = dict(store.objects)
    for _ in range(2):
        with pytest.raises(Fenced):
            old.commit(append(4, segment=2))
    with pytest.raises(Fenced):
        old.settle()
    assert store.objects == before
    assert new.commit(append(2, segment=3)).end_offset == 5


def test_a_lost_answer_is_found_among_the_previous_commits_of_a_new_epoch(store: MemoryStore) -> None:
    """It was published, the next owner built upon it: the answer is success, the next commit is fenced."""
    old, new = committer(store), committer(store)
    old.claim()
    put = store.put

    def overtaken(key: str, data: bytes, **how: object) -> str:
        store.put = put  # type: ignore[method-assign]
        put(key, data, **how)  # type: ignore[arg-type]
        new.claim()
        new.commit(append(2, segment=2))
        raise ColdStorageError("timeout", retryable=True)

    store.put = overtaken  # type: ignore[method-assign]
    head = old.commit(append(5))
    assert (head.epoch, head.end_offset) == (1, 5)
    assert published(store).end_offset == 7
    with pytest.raises(Fenced):
        old.commit(append(1, segment=3))


def test_a_claim_that_was_overtaken_keeps_its_own_epoch(store: MemoryStore) -> None:
    one, two = committer(store), committer(store)
    put = store.put

    def overtaken(key: str, data: bytes, **how: object) -> str:
        store.put = put  # type: ignore[method-assign]
        put(key, data, **how)  # type: ignore[arg-type]
        two.claim()
        raise ColdStorageError("timeout", retryable=True)

    store.put = overtaken  # type: ignore[method-assign]
    assert one.claim() == 1
    assert two.epoch == 2
    with pytest.raises(Fenced):
        one.commit(append(1))


def test_a_head_that_went_back_is_noticed(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    old = store.objects[HEAD]
    one.claim()
    store.objects[HEAD] = (old[0], "other")
    with pytest.raises(CorruptionError, match="went back"):
        one.commit(append(1))


def test_an_older_head_of_the_same_epoch_is_not_built_upon(store: MemoryStore) -> None:
    """As from an old version of the bucket: what was published since would be lost to the log, and swept."""
    one = committer(store)
    one.claim()
    one.commit(append(1))
    old = store.objects[HEAD]
    one.commit(append(1, segment=2))
    store.objects[HEAD] = (old[0], "other")
    for look in (one.survey, lambda: one.commit(append(1, segment=3))):
        with pytest.raises(CorruptionError, match="an older head"):
            look()
    assert store.objects[HEAD] == (old[0], "other")


def test_a_change_that_breaks_the_manifest_is_not_published(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    before = dict(store.objects)
    with pytest.raises(ColdStorageError, match="refused"):
        one.commit(lambda head: replace(head, end_offset=5))
    assert store.objects == before


def test_pages_are_in_the_bucket_before_the_head_names_them(store: MemoryStore, monkeypatch: object) -> None:
    one = committer(store)
    one.claim()
    for i in range(200):
        one.publish_objects([entry(i, i + 1, i + 1)], {0: "x"})
    pages = {ref.name for ref in published(store).pages}
    assert len(pages) >= 2
    assert all(parse_page_name(name) for name in pages)
    seen: set[str] = set()
    for key, data in store.writes:
        if key == HEAD:
            assert {ref.name for ref in decode_head(data, where=key).pages} <= seen
        seen.add(key.rpartition("/")[2])
    reader = PartitionManifest(store, "t", TOPIC, 0)
    loaded = reader.load()
    assert loaded is not None
    store.requests.clear()
    assert [e.base_offset for e in reader.entries(loaded.head, 3, 6)] == [3, 4, 5]
    assert len(store.requests) == 1
    assert [e.base_offset for e in reader.entries(loaded.head)] == list(range(200))
    assert reader.covers(loaded.head, UUID(int=5), 4, 5)
    assert not reader.covers(loaded.head, UUID(int=6), 4, 5)
    store.requests.clear()
    assert len(reader.entries(loaded.head)) == 200
    assert store.requests == []


def test_a_page_that_comes_back_changed_is_not_named(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    get = store.get

    def tampered(key: str) -> object:
        found = get(key)
        return replace(found, data=found.data[:-1] + b"?") if "/pages/" in key else found

    store.get = tampered  # type: ignore[method-assign, assignment]
    with pytest.raises(CorruptionError, match="came back changed"):
        for i in range(100):
            one.publish_objects([entry(i, i + 1, i + 1)], {0: "x"})
    assert published(store).pages == ()


def test_a_damaged_page_is_corruption(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    for i in range(100):
        one.publish_objects([entry(i, i + 1, i + 1)], {0: "x"})
    key = one.partition.keys.page(published(store).pages[0].name)
    data, etag = store.objects[key]
    store.objects[key] = (data[:40] + bytes([data[40] ^ 1]) + data[41:], etag)
    reader = PartitionManifest(store, "t", TOPIC, 0)
    with pytest.raises(CorruptionError, match=r"pages/.*\.zst"):
        reader.entries(published(store))
    del store.objects[key]
    with pytest.raises(ColdStorageError):
        reader.entries(published(store))


def test_the_head_of_another_partition_is_corruption(store: MemoryStore) -> None:
    committer(store).claim()
    store.objects[PartitionKeys.of("t", TOPIC, 1).head] = store.objects[HEAD]
    with pytest.raises(CorruptionError, match="head of partition 0"):
        PartitionManifest(store, "t", TOPIC, 1).load()


def test_without_compare_and_swap_a_second_tierer_is_noticed(store: MemoryStore) -> None:
    store.conditional_writes = False
    old, new = committer(store), committer(store)
    old.claim()
    old.commit(append(3))
    new.claim()
    with pytest.raises(Fenced):
        old.commit(append(3, segment=2))
    assert new.commit(append(1, segment=2)).end_offset == 4


def test_the_commit_time_never_goes_back(store: MemoryStore) -> None:
    clock = Clock()
    one = committer(store, clock)
    one.claim()
    clock.now_us -= 500
    assert one.commit(append(1)).committed_us == 1_000_000


def test_waits_grow_and_are_bounded(store: MemoryStore) -> None:
    clock = Clock()
    one = Committer(
        PartitionManifest(store, "t", TOPIC, 0),
        STORE,
        clock=clock,
        sleep=clock.sleep,
        attempts=12,
        backoff_seconds=1.0,
    )
    store.fault = lambda verb, key: "lost" if verb == "put" else None
    with pytest.raises(ColdStorageError, match="outcome unknown"):
        one.claim()
    assert len(clock.slept) == 11
    assert all(low <= wait <= 2 * low for low, wait in zip([0.5, 1, 2, *[2.5] * 8], clock.slept, strict=True))


class Busy:
    """Somebody who commits right before each PUT of a claim, for so many times."""

    def __init__(self, store: MemoryStore, times: int) -> None:
        self.left, self._other, self._inside = times, committer(store), False
        self._other.claim()
        store.fault = self

    def __call__(self, verb: str, key: str) -> None:
        if verb == "put" and key == HEAD and self.left and not self._inside:
            self.left, self._inside = self.left - 1, True
            self._other.commit(lambda head: replace(head, committed_us=head.committed_us + 1))
            self._inside = False


def test_a_claim_races_whoever_commits_back_to_back(store: MemoryStore) -> None:
    """It looks and puts with nothing in between, neither a wait nor another request."""
    clock, checks = Clock(), []
    busy = Busy(store, 50)
    claiming = Committer(
        PartitionManifest(store, "t", TOPIC, 0), STORE, clock=clock, sleep=clock.sleep, monotonic=lambda: 0.0
    )
    assert claiming.claim(begin_lineage=True, check=lambda: checks.append(1)) == 2
    assert (busy.left, clock.slept, len(checks)) == (0, [], 1)


def test_a_claim_that_never_comes_first_says_so(store: MemoryStore) -> None:
    """And looks every few seconds whether it may go on."""
    clock, checks = Clock(), []
    now = 0.0

    def monotonic() -> float:
        nonlocal now
        now += 0.5
        return now

    Busy(store, 1000)
    claiming = Committer(
        PartitionManifest(store, "t", TOPIC, 0), STORE, clock=clock, sleep=clock.sleep, monotonic=monotonic
    )
    with pytest.raises(
        ColdStorageError, match=r"others committed to .*head\.json first, \d+ times in 60 s"
    ) as caught:
        claiming.claim(begin_lineage=True, check=lambda: checks.append(now))
    assert caught.value.retryable
    assert not claiming.unsettled
    assert 60 <= now < 65
    assert 10 <= len(checks) <= 14


def test_a_claim_checks_again_where_a_lineage_began_meanwhile(store: MemoryStore) -> None:
    """The check is of the head that it builds upon."""
    other, claiming = committer(store), committer(store)
    other.claim()
    lineages: list[int] = []
    overtaken = False

    def overtake(verb: str, key: str) -> None:
        nonlocal overtaken
        if verb == "put" and key == HEAD and not overtaken:
            overtaken = True
            other.claim(begin_lineage=True)

    store.fault = overtake
    claiming.claim(begin_lineage=True, check=lambda: lineages.append(len(published(store).lineages)))
    assert lineages == [1, 2]


def test_who_was_fenced_asks_nobody_any_more(store: MemoryStore) -> None:
    old, new = committer(store), committer(store)
    old.claim()
    old.commit(append(3))
    new.claim()
    with pytest.raises(Fenced, match="epoch 2 was published"):
        old.commit(append(4))
    store.requests.clear()
    for call in (old.last_head, old.survey, old.settle):
        with pytest.raises(Fenced, match="epoch 2 was published"):
            call()
    assert store.requests == []


def test_the_head_is_read_again_after_a_commit_of_unknown_outcome(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    faults(store, "lost", "lost", "lost")
    with pytest.raises(ColdStorageError, match="outcome unknown"):
        one.commit(append(1))
    store.fault = lambda verb, key: None
    assert one.known_head is None
    assert one.last_head() == published(store)


def test_a_head_from_before_a_commit_whose_answer_was_lost_is_not_built_upon(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    before = store.objects[HEAD]
    faults(store, "answer lost")
    one.commit(append(1))
    store.objects[HEAD] = before
    with pytest.raises(CorruptionError, match="older head"):
        one.survey()


def test_a_commit_waits_for_the_one_under_way(store: MemoryStore) -> None:
    """It would be planned on the head that the other one is about to replace."""
    one = committer(store)
    one.claim()
    first, asked = threading.current_thread(), []

    def fault(verb: str, key: str) -> str | None:
        asked.append(threading.current_thread())
        if threading.current_thread() is first and not second.ident:
            second.start()
            second.join(0.05)
            assert second not in asked
        return None

    second = threading.Thread(target=lambda: one.commit(append(1, 2)))
    store.fault = fault
    one.commit(append(1, 1))
    second.join(60)
    assert published(store).end_offset == 2


@pytest.mark.parametrize("name", ["survey", "last_head", "claim"])
def test_who_asks_for_the_head_waits_for_the_commit_under_way(store: MemoryStore, name: str) -> None:
    """Else an object could be neither in the head that a survey reads, nor in flight any more."""
    one = committer(store)
    one.claim()
    first, asked, found = threading.current_thread(), [], []

    def fault(verb: str, key: str) -> str | None:
        asked.append(threading.current_thread())
        if threading.current_thread() is first and not second.ident:
            second.start()
            second.join(0.05)
            assert second not in asked
        return None

    second = threading.Thread(target=lambda: found.append(getattr(one, name)()))
    store.fault = fault
    head = one.commit(append(1, 1))
    second.join(60)
    assert len(found) == 1
    assert published(store).end_offset == head.end_offset == 1


def test_nothing_is_committed_or_surveyed_without_a_claim(store: MemoryStore) -> None:
    one = committer(store)
    with pytest.raises(RuntimeError, match="comes before commit"):
        one.commit(append(1))
    with pytest.raises(RuntimeError, match="comes before survey"):
        one.survey()
    assert store.objects == {}


def test_a_survey_can_be_tried_again_once_a_commit_is_settled(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    faults(store, "lost", "lost", "lost")
    with pytest.raises(ColdStorageError, match="outcome unknown"):
        one.commit(append(1))
    store.fault = lambda verb, key: None
    with pytest.raises(ColdStorageError, match="may still land") as caught:
        one.survey()
    assert caught.value.retryable
    one.settle()
    assert one.survey()[0].head == published(store)


def test_a_head_of_another_store_is_not_built_upon(store: MemoryStore) -> None:
    """Its epoch and its commits may be the same, as of a copy that was given a new id."""
    one = committer(store)
    one.claim()
    foreign = encode_head(replace(published(store), store_id=UUID(int=99)))
    store.objects[HEAD] = (foreign, "foreign")
    for call in (one.survey, lambda: one.commit(append(1))):
        with pytest.raises(ColdStorageError, match="belongs to store"):
            call()
    assert store.objects[HEAD] == (foreign, "foreign")


def test_a_head_that_may_not_be_read_back_ends_the_commit_at_once(store: MemoryStore) -> None:
    class Refusing(MemoryStore):
        refuses = False

        def get(self, key: str) -> Versioned:
            if self.refuses:
                raise ColdStorageError("403 AccessDenied")
            return super().get(key)

    refusing, clock = Refusing(), Clock()
    one = committer(refusing, clock)
    one.claim()
    faults(refusing, "lost")
    refusing.refuses = True
    with pytest.raises(ColdStorageError, match="403"):
        one.commit(append(1))
    assert clock.slept == []
    assert one.unsettled


def test_threads_take_turns(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    threads = [
        threading.Thread(target=lambda s=s: [one.commit(append(1, s)) for _ in range(5)])  # type: ignore[misc]
        for s in range(1, 5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert published(store).end_offset == 20


def test_object_names_bear_the_epoch_and_are_never_used_twice(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    one.claim()
    names = {one.new_object_name(42) for _ in range(100)}
    assert len(names) == 100
    for name in names:
        parsed = parse_object_name(name)
        assert parsed is not None
        assert (parsed.base_offset, parsed.epoch, str(parsed)) == (42, 2, name)


FAULTS = st.lists(st.sampled_from([None, "lost", "answer lost", "repeated", "delayed"]), max_size=8)


def must_be_retryable(error: ColdStorageError) -> None:
    assert error.retryable, error


class Bucket(RuleBasedStateMachine):
    """Three processes share a partition; any request may fail in any way; late writes land at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.clock = Clock()
        self.processes = [committer(self.store, self.clock) for _ in range(3)]
        self.acknowledged: list[ObjectEntry] = []
        self.doubtful: dict[int, list[ObjectEntry]] = {0: [], 1: [], 2: []}
        self.dead: set[str] = set()
        self.epochs: dict[int, int] = {}
        self.fenced_at: dict[int, int] = {}
        self.segment = 0
        self.history: list[Head] = []
        self._limit = manifest_changes.INLINE_ENTRIES_MAX
        manifest_changes.INLINE_ENTRIES_MAX = 4

    def teardown(self) -> None:
        manifest_changes.INLINE_ENTRIES_MAX = self._limit

    @initialize()
    def begin(self) -> None:
        self.processes[0].claim()
        self.epochs[1] = 0

    def meet(self, kinds: list[str | None]) -> None:
        left: Iterator[str | None] = iter(kinds)
        self.store.fault = lambda verb, key: next(left, None)

    @rule(who=st.integers(0, 2), kinds=FAULTS, restore=st.booleans())
    def claim(self, who: int, kinds: list[str | None], restore: bool) -> None:
        self.meet(kinds)
        try:
            epoch = self.processes[who].claim(begin_lineage=restore)
        except ColdStorageError as error:
            must_be_retryable(error)
            return
        assert epoch not in self.epochs, "two processes were given one epoch"
        self.epochs[epoch] = who
        self.fenced_at.pop(who, None)
        self.resolve(who)

    @rule(who=st.integers(0, 2), kinds=FAULTS, count=st.integers(1, 3))
    def publish(self, who: int, kinds: list[str | None], count: int) -> None:
        process = self.processes[who]
        if not process.epoch:
            return
        self.meet(kinds)
        self.segment += 1
        segment, tried = self.segment, []

        def change(head: Head) -> Head:
            tried.append(entry(head.end_offset, head.end_offset + count, segment))
            return add_objects(add_schemas(head, {0: "x"}), tried[-1:], process.partition)

        try:
            head = process.commit(change)
        except Fenced:
            self.fence(who)
            return
        except ColdStorageError as error:
            must_be_retryable(error)
            self.doubtful[who] += tried
            return
        assert head.epoch == process.epoch
        assert tried[-1] in process.partition.entries(head)
        self.acknowledged.append(tried[-1])
        self.dead |= {item.name for item in tried[:-1] if item.name != tried[-1].name}
        self.resolve(who)

    @rule(who=st.integers(0, 2), kinds=FAULTS)
    def settle(self, who: int, kinds: list[str | None]) -> None:
        if not self.processes[who].epoch:
            return
        self.meet(kinds)
        try:
            self.processes[who].settle()
        except Fenced:
            self.fence(who)
        except ColdStorageError as error:
            must_be_retryable(error)
        else:
            self.resolve(who)

    @precondition(lambda self: self.store.delayed)
    @rule(data=st.data())
    def land_late(self, data: st.DataObject) -> None:
        self.store.delayed.pop(data.draw(st.integers(0, len(self.store.delayed) - 1)))()

    def fence(self, who: int) -> None:
        self.fenced_at.setdefault(who, len(self.heads()))
        # A higher epoch stands in the bucket, so of its commits nothing can land any more (a claim could).
        self.give_up(who)

    def resolve(self, who: int) -> None:
        assert not self.processes[who].unsettled
        self.give_up(who)

    def give_up(self, who: int) -> None:
        """This process knows now what became of its commits: what is not in the head may never appear."""
        names = {item.name for item in self.entries()}
        self.dead |= {item.name for item in self.doubtful[who] if item.name not in names}
        self.doubtful[who] = []

    def entries(self) -> list[ObjectEntry]:
        self.store.fault = lambda verb, key: None
        fresh = PartitionManifest(self.store, "t", TOPIC, 0)
        loaded = fresh.load()
        return fresh.entries(loaded.head) if loaded else []

    def heads(self) -> list[Head]:
        """Every head that was ever published, in order."""
        writes = [data for key, data in self.store.writes if key == HEAD]
        self.history += [decode_head(data, where=HEAD) for data in writes[len(self.history) :]]
        return self.history

    @invariant()
    def one_line_of_commits(self) -> None:
        checked = len(self.history)
        heads = self.heads()
        for before, after in pairwise(heads[max(0, checked - 1) :]):
            assert after.previous_commit_ids[0] == before.commit_id
            assert after.epoch >= before.epoch
            assert after.end_offset >= before.end_offset
            assert after.lineages[: len(before.lineages)] == before.lineages
        assert len({head.commit_id for head in heads}) == len(heads)

    @invariant()
    def nothing_acknowledged_is_lost_and_nothing_given_up_appears(self) -> None:
        if HEAD not in self.store.objects:
            return
        found = self.entries()
        head = published(self.store)
        assert check_head(head) + check_entries(head, found) == []
        names = {item.name for item in found}
        assert {item.name for item in self.acknowledged} <= names
        assert not self.dead & names

    @invariant()
    def who_is_fenced_publishes_nothing_more(self) -> None:
        for who, at in self.fenced_at.items():
            assert who not in {self.epochs.get(head.epoch) for head in self.heads()[at:]}


TestBucket = Bucket.TestCase
TestBucket.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_a_head_of_a_newer_release_stops_the_committer(store: MemoryStore) -> None:
    one = committer(store)
    one.claim()
    newer = encode_head(replace(published(store), version=2))
    store.objects[HEAD] = (newer, "x")
    with pytest.raises(Exception, match="newer") as caught:
        one.commit(append(1))
    assert type(caught.value).__name__ == "UnsupportedFormat"
    assert store.objects[HEAD] == (newer, "x")
