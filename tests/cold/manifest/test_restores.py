"""A restore's intent: who waits for whom, by which clock, and for how long at most."""

from __future__ import annotations

import threading
from typing import Any
from uuid import UUID

import pytest

from tests.support.memory_store import MemoryStore
from tiered.cold.manifest.keys import STORE_KEY
from tiered.cold.manifest.restore_intent import INTENT_SECONDS, INTENT_SECONDS_MAX, intent_of
from tiered.cold.manifest.restores import (
    POLL_PAUSED_SECONDS,
    POLL_SECONDS,
    RENEW_SECONDS,
    IntentHolder,
    IntentWatch,
)
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.cold.object_store.protocol import ObjectInfo
from tiered.errors import Fenced, RestoreUnderWay, StoreLocked
from tiered.format.document import decode_document, encode_document

STORE = UUID(int=7)


class Server(MemoryStore):
    """A bucket with a clock that stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.clock = lambda: self.now

    def delete(self, keys: Any) -> None:
        for key in keys:
            assert key.startswith("probe/")
            self.objects.pop(key, None)

    def looks(self) -> int:
        return len([key for verb, key, *_ in self.requests if (verb, key) == ("get", STORE_KEY)])

    @property
    def document(self) -> dict[str, Any]:
        return decode_document(self.objects[STORE_KEY][0], where=STORE_KEY)

    def write(self, **values: Any) -> None:
        self.put(STORE_KEY, encode_document({**self.document, **values}))


@pytest.fixture
def server() -> Server:
    server = Server()
    StoreDocuments(server).claim_store(STORE)
    return server


class Side:
    """One process that has the bucket, with a monotonic clock of its own."""

    def __init__(self, server: Server) -> None:
        self.server, self.now = server, 0.0
        self.bucket = StoreDocuments(server, sleep=lambda _: None)
        self.restores = IntentWatch(monotonic=lambda: self.now)

    def restoring(self, restore_id: str, holder: str = "ann@host") -> IntentHolder:
        return IntentHolder(self.bucket, restore_id, holder, monotonic=lambda: self.now)

    def claim(self, lineage: int = 1) -> int:
        return self.bucket.claim_store(
            STORE, lineage, left_seconds=lambda intent: self.restores.left_seconds(self.bucket, intent)
        )

    def look(self) -> bool:
        """Whether it publishes."""
        try:
            self.restores.check(self.bucket)
        except RestoreUnderWay:
            return False
        return True

    def pass_(self, seconds: float) -> None:
        """Let the time of the server and of this process pass."""
        self.server.now += seconds
        self.now += seconds


def test_a_second_restore_is_refused_by_name_while_the_first_is_under_way(server: Server) -> None:
    one, two = Side(server), Side(server)
    first, second = one.restoring("1", "ann@one (process 5)"), two.restoring("2")
    assert first.begin() == 2
    with pytest.raises(
        StoreLocked, match=r"restored by ann@one \(process 5\): wait .* begin this one in 31 s"
    ):
        second.begin()
    assert second.lineage == 0
    first.check()
    one.pass_(INTENT_SECONDS + 2)
    assert second.begin() == 3
    with pytest.raises(Fenced, match="belongs to lineage 3: the store was restored elsewhere"):
        first.check()
    with pytest.raises(Fenced):
        first.finish()
    first.give_up()
    second.check()
    second.finish()
    assert (server.document["lineage"], "restore" in server.document) == (3, False)
    with pytest.raises(Fenced, match="restored elsewhere"):
        two.claim()


def test_a_repeat_of_a_restore_waits_for_nobody(server: Server) -> None:
    """It has the id of the one that was cut short."""
    side = Side(server)
    assert side.restoring("1").begin() == 2
    again = side.restoring("1")
    assert again.begin() == 3
    again.finish()


def test_a_store_pauses_while_the_intent_is_renewed_and_no_longer(server: Server) -> None:
    host, other = Side(server), Side(server)
    assert host.look()
    restoring = other.restoring("1")
    restoring.begin()
    host.pass_(POLL_SECONDS)
    for _ in range(10):
        assert not host.look()
        with pytest.raises(
            RestoreUnderWay, match="is being restored by ann@host: nothing is published here"
        ) as caught:
            host.claim()
        assert caught.value.retryable
        host.pass_(RENEW_SECONDS)
        other.now += RENEW_SECONDS
        restoring.check()
    host.pass_(INTENT_SECONDS)
    assert not host.look()
    host.pass_(POLL_PAUSED_SECONDS + 1)
    assert host.look()
    assert server.document["lineage"] == 2  # it needs no more than to commit
    assert host.claim() == 3
    with pytest.raises(Fenced, match="expired, and the store went on where it was; repeat"):
        restoring.check()
    # What was of lineage 1 is now so for ever, a restore that is cut short later, too.
    assert host.claim() == 3
    assert Side(server).restoring("2").begin() == 4
    host.pass_(INTENT_SECONDS + 2)
    assert Side(server).claim() == 5
    with pytest.raises(Fenced):
        host.claim(lineage=2)


def test_a_restore_that_fails_lets_the_store_go_on_at_once(server: Server) -> None:
    host, restoring = Side(server), Side(server).restoring("1")
    restoring.begin()
    assert not host.look()
    restoring.give_up()
    host.pass_(POLL_PAUSED_SECONDS)
    assert host.look()
    assert host.claim() == 3


def test_a_store_asks_every_few_seconds_by_one_request_whoever_commits(server: Server) -> None:
    host = Side(server)
    before = server.looks()
    asking = threading.Barrier(4)

    def commits() -> None:
        asking.wait()
        for _ in range(100):
            host.restores.check(host.bucket)

    threads = [threading.Thread(target=commits) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.looks() == before + 1
    host.now += POLL_SECONDS
    assert host.look()
    assert server.looks() == before + 2


def test_a_dead_intent_is_judged_once(server: Server) -> None:
    host = Side(server)
    Side(server).restoring("1").begin()
    host.pass_(INTENT_SECONDS + 2)
    assert host.look()
    writes = len(server.writes)
    for _ in range(5):
        host.pass_(POLL_SECONDS)
        assert host.look()
    assert len(server.writes) == writes


def test_an_intent_that_another_thread_ends_meanwhile_pauses_nobody(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that a thread gets with the document is then not that of the intent which it has read."""

    def claimed_by_another_first(key: str) -> ObjectInfo:
        monkeypatch.undo()
        assert other.claim() == 3
        return server.stat(key)

    host, other = Side(server), Side(server)
    Side(server).restoring("1").begin()
    host.pass_(INTENT_SECONDS + 2)
    monkeypatch.setattr(server, "stat", claimed_by_another_first)
    assert host.look()


def test_an_intent_that_is_renewed_meanwhile_pauses(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def renewed_first(key: str) -> ObjectInfo:
        monkeypatch.undo()
        restoring.check()
        return server.stat(key)

    host, other = Side(server), Side(server)
    restoring = other.restoring("1")
    restoring.begin()
    other.pass_(RENEW_SECONDS)
    monkeypatch.setattr(server, "stat", renewed_first)
    assert not host.look()


HOSTILE: list[Any] = [
    {"seconds": 1e300},
    {"seconds": float("inf")},
    {"seconds": float("nan")},
    {"seconds": -5},
    {"seconds": "for ever"},
    {"seconds": True},
    {"renewals": -1},
    {"renewals": 1 << 80},
    {"renewals": [1]},
    {"id": 5},
    {"id": {"a": "b"}},
    {"id": "x" * 100_000},
    {"holder": "\x1b]0;owned\x07\x1b[2J" + "h" * 100_000},
    {"holder": None},
]


@pytest.mark.parametrize(
    "values", HOSTILE, ids=lambda values: next(iter(values)) + str(next(iter(values.values())))[:9]
)
def test_no_intent_holds_longer_than_a_minute_whatever_it_says(
    server: Server, values: dict[str, Any]
) -> None:
    host = Side(server)
    Side(server).restoring("1").begin()
    server.write(restore={**server.document["restore"], **values})
    with pytest.raises(RestoreUnderWay) as caught:
        host.claim()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500
    with pytest.raises(StoreLocked):
        Side(server).restoring("2").begin()
    host.pass_(INTENT_SECONDS_MAX + 2)
    assert host.look()
    assert host.claim() == 3


@pytest.mark.parametrize(
    "restore",
    [
        None, "yes", 5, [], [1], {}, {"lineage": "2"}, {"lineage": 2}, {"lineage": 2, "of": "1"}, {"lineage": 2, "of": 0},
        {"lineage": 2, "of": 3}, {"lineage": 2, "of": True}, {"lineage": 1, "of": 1, "id": "1"},
    ],
)  # fmt: skip
def test_what_is_no_intent_leaves_the_lineage_to_speak(server: Server, restore: object) -> None:
    """Also one of an earlier lineage: a release that does not know of intents restored since, and kept the field."""
    server.write(lineage=2, restore=restore)
    host = Side(server)
    assert host.look()
    with pytest.raises(Fenced):
        host.claim()
    assert host.claim(lineage=2) == 2
    assert Side(server).restoring("1").begin() == 3


@pytest.mark.parametrize("ahead", [-1e9, 3600.0, 1e9])
def test_a_document_dated_by_another_clock_holds_nobody_up(server: Server, ahead: float) -> None:
    Side(server).restoring("1").begin()
    server.modified[STORE_KEY] += ahead
    assert Side(server).claim() == 3


def test_a_clock_that_stands_still_is_believed_for_a_minute_of_our_own(server: Server) -> None:
    host = Side(server)
    Side(server).restoring("1").begin()
    assert not host.look()
    host.now += INTENT_SECONDS_MAX - 1
    assert not host.look()
    host.now += POLL_PAUSED_SECONDS + 1
    assert host.look()


@pytest.mark.parametrize("fault", ["answer lost", "repeated", "delayed"])
def test_each_step_survives_a_lost_answer(server: Server, fault: str) -> None:
    def once() -> None:
        left = [fault]
        server.fault = lambda verb, key: left.pop() if verb == "put" and key == STORE_KEY and left else None

    side = Side(server)
    restoring = side.restoring("1")
    for step in (restoring.begin, lambda: side.pass_(RENEW_SECONDS), restoring.check, restoring.finish):
        once()
        step()
    assert intent_of(server.document, server.document["lineage"]) is None
    with pytest.raises(Fenced):
        side.claim()
    assert side.claim(restoring.lineage) == restoring.lineage
    for late in server.delayed:
        late()
    assert side.claim(restoring.lineage) == restoring.lineage


def test_a_bucket_that_says_nothing_of_a_restore_is_no_reason_to_pause(server: Server) -> None:
    """Whether anything may be published, the head says."""
    host = Side(server)
    server.fault = lambda verb, key: "lost"
    assert host.look()
    server.fault = lambda verb, key: None
    server.put(STORE_KEY, b"\xff")
    host.now += POLL_SECONDS
    assert host.look()
