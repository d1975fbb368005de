"""Erasures of rows that the transaction log has, too: it is written anew after crashes and restores, and then has them again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.byte_search import files_with
from tests.support.clock import Clock
from tests.support.erasure_passes import run_passes
from tests.support.stores import open_store, stepwise
from tiered.engine import erase
from tiered.engine.host import Host

SETTINGS = stepwise(offload={"after": "1h", "tail_interval": "1s"}, local_retention={"age": "1h"})


def carry_out(store: tiered.Store, clock: Clock, days: Any) -> None:
    run_passes(store, clock, days, 5)
    assert [(x.state, x.waits_for) for x in store.erasures()] == [("done", "")]


def transact(store: tiered.Store, value: bytes, key: str, *topics: str) -> None:
    with store.transaction() as transaction:
        for topic in topics or ("t",):
            transaction.append(topic, value, key=key)


def values(store: tiered.Store, topic: str = "t") -> list[bytes]:
    return store.topic(topic).scan(columns=["value"]).to_arrow()["value"].to_pylist()


def test_a_restore_to_a_time_writes_rows_again(tmp_path: Path, url: str, clock: Clock, days: Any) -> None:
    """Behind the end of the log at the call: the restored log has no record of later times, and all others once more."""
    with open_store(tmp_path / "old", url, clock, settings=SETTINGS) as store:
        store.create_topic("t")
        transact(store, b"<of b>", "b")
        store.topic("t").publish()
        moment = clock() // 1000
        clock.advance(60)
        transact(store, b"undone", "a")
        store.topic("t").publish()
        store.topic("t").erase(["b"])
        store.tierer.erasures.exchange()
    with tiered.restore(url, tmp_path / "new", settings=SETTINGS, host=Host(clock=clock), at=moment) as store:
        shutil.rmtree(tmp_path / "old")
        store.tierer.erasures.exchange()
        (erasure,) = store.erasures()
        log = store.topic("__transactions")
        assert log.offsets()[0].start >= erasure.entry.log_end
        assert any("__transactions" in name for name in files_with(tmp_path / "new", b"<of b>"))
        carry_out(store, clock, days)
        assert values(store) == []
    assert files_with(tmp_path, b"<of b>") == []


@pytest.mark.parametrize("restored", [False, True])
def test_an_opening_after_a_crash_writes_rows_again(
    tmp_path: Path, url: str, clock: Clock, days: Any, restored: bool
) -> None:
    """A power cut took records in front of another transaction, whose rows got lower offsets.

    A restore appends the rows that are in the published log alone once more.
    """
    with open_store(tmp_path / "lost", url, clock, settings=SETTINGS) as store:
        store.create_topic("t")
        store.create_topic("u")
        transact(store, b"<of b>", "b")
        store.topic("t").erase(["b"])
        store.topic("u").append(b"first")
        store.topic("u").flush()
        (file,) = (tmp_path / "lost/topics/u/0").glob("*.log")
        durable = file.read_bytes()
        store.topic("u").append(b"lost")
        transact(store, b"kept", "a", "u")
        shutil.copytree(tmp_path / "lost", tmp_path / "data")
    shutil.rmtree(tmp_path / "lost")
    (tmp_path / "data" / file.relative_to(tmp_path / "lost")).write_bytes(durable)
    with open_store(tmp_path / "data", url, clock, settings=SETTINGS) as store:
        assert values(store, "u") == [b"first", b"kept"]
        (erasure,) = store.erasures()
        assert store.topic("__transactions").offsets()[0].start >= erasure.entry.log_end
        if not restored:
            carry_out(store, clock, days)
            assert values(store) == []
        else:
            store.topic("u").publish()
            store.tierer.erasures.exchange()
    if restored:
        shutil.rmtree(tmp_path / "data")
        with tiered.restore(url, tmp_path / "new", settings=SETTINGS, host=Host(clock=clock)) as store:
            assert values(store) == [b"<of b>"]
            run_passes(store, clock, days, 5)
            carry_out(store, clock, days)
            assert values(store) == []
    assert files_with(tmp_path, b"<of b>") == []


@pytest.mark.parametrize(("published", "restores"), [(False, 1), (True, 1), (False, 2)])
def test_rows_that_a_restored_store_appends_are_erased(
    tmp_path: Path, url: str, clock: Clock, days: Any, published: bool, restores: int
) -> None:
    """Those that were published in the transaction log only get offsets behind the end of the partition in the bucket.

    A host that is lost before it publishes them leaves them in the log, with offsets behind the lowered horizon.
    """
    with open_store(tmp_path / "old", url, clock, settings=SETTINGS) as store:
        store.create_topic("u")
        store.create_topic("t").append(b"first", key="a")
        store.topic("t").publish()
        store.topic("t").append(b"lost", key="a")
        transact(store, b"<of b>", "b", "t", "u")
        store.topic("u").publish()
        if published:
            store.topic("t").publish()
        store.topic("t").erase(["b"])
        store.tierer.erasures.exchange()
    for number in range(1, restores):
        tiered.restore(url, tmp_path / str(number), settings=SETTINGS, host=Host(clock=clock)).close()
    with tiered.restore(url, tmp_path / "new", settings=SETTINGS, host=Host(clock=clock)) as store:
        for number in range(1, restores):
            shutil.rmtree(tmp_path / str(number))
        shutil.rmtree(tmp_path / "old")
        before = [b"first", b"lost"] if published else [b"first"]
        assert values(store) == [*before, b"<of b>"]
        store.topic("t").append(b"later", key="b")
        carry_out(store, clock, days)
        assert values(store) == [*before, b"later"]


def test_rows_of_a_later_transaction_are_kept_behind_an_empty_lineage(
    tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    """The lineage of the call begins where the one before ended; a restore completes a transaction from after the call there."""
    with open_store(tmp_path / "old", url, clock, settings=SETTINGS) as store:
        topic = store.create_topic("t")
        transact(store, b"<of b>", "b")
        topic.publish()
    with tiered.restore(url, tmp_path / "one", settings=SETTINGS, host=Host(clock=clock)) as store:
        store.topic("t").erase(["b"])
        store.tierer.erasures.exchange()
        transact(store, b"later", "b")
        store.tierer.tails.publish(store.topic("__transactions").meta, 0)
    with tiered.restore(url, tmp_path / "two", settings=SETTINGS, host=Host(clock=clock)) as store:
        assert values(store) == [b"<of b>", b"later"]
        carry_out(store, clock, days)
        assert values(store) == [b"later"]


def test_rows_that_were_deleted_do_not_come_back_and_count_no_more(
    tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    """The transaction log has them still. A later record gets the offset of one that was lost, below the horizon of the call."""
    with open_store(tmp_path / "old", url, clock, settings=SETTINGS) as store:
        store.create_topic("u")
        topic = store.create_topic("t")
        transact(store, b"<of b>", "b", "t", "u")
        store.topic("u").publish()
        topic.publish()
        topic.delete_before(1)
        topic.roll()
        store.tier()
        topic.append(b"lost", key="a")
        topic.erase(["b"])
        store.tierer.erasures.exchange()
    with tiered.restore(url, tmp_path / "new", settings=SETTINGS, host=Host(clock=clock)) as store:
        shutil.rmtree(tmp_path / "old")
        assert values(store) == []
        assert [item.entry.horizons for item in store.erasures()] == [(1,)]
        store.topic("t").append(b"later", key="b")
        carry_out(store, clock, days)
        assert values(store) == [b"later"]


def test_undone_rows_in_the_log_alone_are_waited_for(
    tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    """The restore undid a transaction of which only the log was published."""
    with open_store(tmp_path / "lost", url, clock, settings=SETTINGS) as store:
        for topic in "tu":
            store.create_topic(topic).append(b"first", key="a")
            store.topic(topic).publish()
        transact(store, b"first", "a", "u")
        store.topic("u").publish()
        moment = clock() // 1000
        clock.advance(60)
        store.topic("__transactions").roll()
        transact(store, b"undone", "a", "t", "u")
        store.topic("u").publish()
        # A restore takes over the first object of the log that is later, but not the next one.
        clock.advance(60)
        store.topic("__transactions").roll()
        store.topic("t").flush()
        (file,) = (tmp_path / "lost/topics/t/0").glob("*.log")
        durable = file.read_bytes()
        store.topic("t").append(b"lost")
        transact(store, b"<of b>", "b", "t", "u")
        store.topic("u").publish()
        shutil.copytree(tmp_path / "lost", tmp_path / "old")
    # A power cut: the rows get a lower offset than their first record says, below the horizon.
    shutil.rmtree(tmp_path / "lost")
    (tmp_path / "old" / file.relative_to(tmp_path / "lost")).write_bytes(durable)
    with open_store(tmp_path / "old", url, clock, settings=SETTINGS) as store:
        assert values(store) == [b"first", b"undone", b"<of b>"]
        store.topic("t").erase(["b"])
        store.tierer.erasures.exchange()
    with tiered.restore(url, tmp_path / "new", settings=SETTINGS, host=Host(clock=clock), at=moment) as store:
        shutil.rmtree(tmp_path / "old")
        # One object at a time: a sweep deletes no more than `sweep.objects_max`.
        few = SETTINGS.sweep.__class__(objects_max=1)
        store.context.settings = SETTINGS.model_copy(update={"sweep": few})
        for _ in range(20):
            clock.advance(3600)
            store.tier()
            in_log = [name for name in files_with(tmp_path, b"<of b>") if "/__transactions/" in name]
            (erasure,) = store.erasures()
            assert in_log == [] or erasure.state != "done"
            days(2)
            store.sweep()
        assert erasure.state == "done"
    assert [name for name in files_with(tmp_path, b"<of b>") if "/u/" not in name] == []


@pytest.mark.parametrize("merged", [False, True])
def test_a_log_that_begins_in_the_middle_of_a_file_begins_behind_it_later(
    tmp_path: Path, url: str, clock: Clock, days: Any, merged: bool
) -> None:
    """An open transaction behind the end at the call keeps the start in front of it; nothing else moves it later."""
    merge = {"after": "2h", "target_bytes": "1MiB"} if merged else "off"
    settings = stepwise(offload={"after": "2h", "tail_interval": "off"}, merge=merge)
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        for topic in "tu":
            store.create_topic(topic)
        transact(store, b"<of b>", "b")
        log = store.topic("__transactions")
        with pytest.MonkeyPatch.context() as patch:
            # As if the process had died behind the first step of the call.
            patch.setattr(type(store.context.commits), "shorten_log", lambda self, offset: None)
            if merged:
                log.roll()  # the first file ends where the log ends at the call, and no object does
            erasure = store.topic("t").erase(["b"])
            for _ in range(6 if merged else 1):
                transact(store, b"of u", "a", "u")
                if merged:
                    log.roll()
            kinds = []
            for _ in range(4 if merged else 0):
                clock.advance(3 * 3600)
                kinds += [action.kind for action, _ in store.tier().done]
            assert ("merge" in kinds) == merged
        for _ in range(2):
            store.tier()
        assert log.offsets()[0].start == erasure.entry.log_end == 1
        before = log.offsets()
        for _ in range(3):
            store.tier()
        assert merged or log.offsets() == before, "nothing is written while the start cannot move"
        carry_out(store, clock, days)
        assert values(store) == []
    assert files_with(tmp_path, b"<of b>") == []


def test_the_first_transaction_of_all_during_the_call_is_searched(
    tmp_path: Path, url: str, clock: Clock, days: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is decided after the call has looked at the log, and its rows lie below the horizons."""
    with open_store(tmp_path / "data", url, clock, settings=SETTINGS) as store:
        store.create_topic("t")
        real = erase.erased_values

        def meanwhile(*given: Any) -> Any:
            transact(store, b"<of b>", "b")
            return real(*given)

        monkeypatch.setattr(erase, "erased_values", meanwhile)
        store.topic("t").erase(["b"])
        carry_out(store, clock, days)
        assert values(store) == []
    assert files_with(tmp_path, b"<of b>") == []


@pytest.mark.parametrize("busy", [False, True])
def test_writers_that_come_for_a_moment_shorten_the_log(
    tmp_path: Path, url: str, clock: Clock, days: Any, busy: bool
) -> None:
    """No pass finds a writer: each has closed the store before the next pass, and asks for nothing itself."""
    settings = stepwise(
        {"sync_interval": "1h"},
        offload={"after": "1h", "tail_interval": "1s"},
        local_retention={"age": "1h"},
    )
    place = tmp_path / "data", url, clock
    with open_store(*place, settings=settings) as store:
        store.create_topic("t")
        transact(store, b"<of b>", "b")
        store.topic("t").erase(["b"])
    with open_store(*place, settings=settings, tierer=True) as daemon:
        run_passes(daemon, clock, days, 3)
        (erasure,) = daemon.erasures()
        assert "its writer shortens it" in erasure.waits_for
        for _ in range(2):
            with open_store(*place, settings=settings) as store:
                if busy:
                    store.topic("t").append(b"of a", key="a")
            run_passes(daemon, clock, days, 3)
        assert (erasure.state, erasure.waits_for) == ("done", "")
    assert files_with(tmp_path, b"<of b>") == []
