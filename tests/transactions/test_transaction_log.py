"""The positions of consumers through sessions, removals, restarts, crashes and the renewal of their log."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tests.support.budget import thinned
from tests.support.clock import Clock
from tests.support.disk_model import BYTES, EVERYTHING, LAST, NAMES, NOTHING, Image, Loss, some
from tests.support.recorder import Recorder
from tests.support.stores import open_store, stepwise
from tiered.engine.append import append_prepared, prepare_record
from tiered.engine.host import Host
from tiered.errors import ConfigError, CorruptionError, Fenced, InvalidName, ReadOnly
from tiered.format.schema import TRANSACTIONS_TOPIC
from tiered.hot.row_checks import RowChecker
from tiered.transactions import log_renewal
from tiered.transactions.decision import Moves
from tiered.transactions.positions import (
    OUTCOMES,
    TRANSACTIONS_SCHEMA,
    Position,
    check_consumer_name,
    commit_row,
    record,
)

TOPICS, CONSUMERS, PARTITIONS = ("orders", "clicks"), ("billing", "audit é"), 2


@given(
    st.text(max_size=40),
    st.lists(st.tuples(st.text(max_size=9), st.integers(0, 99), st.integers(0, 1 << 60))),
)
def test_a_commit_is_the_row_that_its_record_is(name: str, moved: list[tuple[str, int, int]]) -> None:
    name = name.encode("utf-8", "ignore").decode()
    positions = [
        Position(name, "t", UUID(int=at), at, offset, 3, 1_700_000_000_000_123, "s", "")
        for _, at, offset in moved
    ]
    checked = RowChecker(TRANSACTIONS_SCHEMA)(record("commit", name, "s", positions))
    assert commit_row(name, "s", positions) == checked


@pytest.fixture(autouse=True)
def renew_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the table be appended again after a few records, as it is after thousands."""
    monkeypatch.setattr(log_renewal, "RENEW_RECORDS_MIN", 5)


class Owned(NamedTuple):
    offset: int | None
    session: str


Model = dict[tuple[str, str, int], Owned]


def seen(store: Any) -> Model:
    return {
        (item.consumer, item.topic, item.partition): Owned(item.offset, item.session)
        for item in store.transactions.all_positions()
    }


steps = st.one_of(
    st.tuples(
        st.just("begin"),
        st.sampled_from(CONSUMERS),
        st.sampled_from(TOPICS),
        st.sets(st.integers(0, PARTITIONS - 1), min_size=1),
    ),
    st.tuples(
        st.just("commit"),
        st.integers(0, 5),
        st.dictionaries(st.integers(0, PARTITIONS - 1), st.integers(0, 9)),
    ),
    st.tuples(st.just("remove"), st.sampled_from(CONSUMERS), st.sampled_from([*TOPICS, None])),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("tier")),
)


@pytest.mark.extended
@given(st.lists(steps, max_size=30))
def test_any_history_gives_the_positions_of_a_model(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[Any, ...]]
) -> None:
    """A session that is not the newest of each of its partitions commits nothing; readers and restarts see the same."""
    folder, clock = tmp_path_factory.mktemp("log"), Clock()

    def opened() -> Any:
        return open_store(folder / "data", f"file://{folder}/bucket", clock)

    store, model, sessions = opened(), Model(), []
    metas = {name: store.create_topic(name, partitions=PARTITIONS).meta for name in TOPICS}
    try:
        for step, *values in history:
            clock.advance(1)
            if step == "begin":
                consumer, topic, partitions = values
                session, positions = store.transactions.begin_session(consumer, metas[topic], partitions)
                sessions.append((consumer, topic, session))
                for partition in partitions:
                    place = consumer, topic, partition
                    model[place] = Owned(model[place].offset if place in model else None, session)
                    assert positions[partition].offset == model[place].offset
            elif step == "commit" and sessions:
                consumer, topic, session = sessions[values[0] % len(sessions)]
                places = {(consumer, topic, partition): offset for partition, offset in values[1].items()}
                offsets = {partition: (offset, 1) for partition, offset in values[1].items()}
                owned = [
                    place
                    for place in model
                    if place[:2] == (consumer, topic) and model[place].session == session
                ]
                if set(places) <= set(owned) and owned:
                    store.transactions.commit(Moves(consumer, metas[topic], session, offsets), None)
                    model |= {place: Owned(offset, session) for place, offset in places.items()}
                else:
                    with pytest.raises(Fenced, match="nothing was committed"):
                        store.transactions.commit(Moves(consumer, metas[topic], session, offsets), None)
            elif step == "remove":
                gone = [place for place in model if place[0] == values[0] and values[1] in (None, place[1])]
                assert len(store.transactions.remove(*values)) == len(gone)
                model = {place: owned for place, owned in model.items() if place not in gone}
            elif step == "reopen":
                store.close()
                store = opened()
            elif step == "tier":
                store.tier((clock() + 5 * 3_600_000_000) // 1000)
            assert seen(store) == model
        store.flush()
        with open_store(folder / "data", f"file://{folder}/bucket", clock, read_only=True) as reader:
            assert seen(reader) == model
    finally:
        store.close()
        shutil.rmtree(folder)


def test_the_log_does_not_grow_with_the_number_of_commits(store: Any) -> None:
    """After any number of commits, what a restart replays is bounded, and old segments are before the start offset."""
    meta = store.create_topic("orders").meta
    session, _ = store.transactions.begin_session("billing", meta, [0])
    for offset in range(100):
        store.transactions.commit(Moves("billing", meta, session, {0: (offset, 1)}), None)
        log = store.topic(TRANSACTIONS_TOPIC).offsets()[0]
        assert log.end - log.start <= 6
    assert seen(store) == {("billing", "orders", 0): Owned(99, session)}


def test_a_reader_beside_follows_over_a_renewal(store: Any, tmp_path: Path, clock: Clock) -> None:
    meta = store.create_topic("orders").meta
    session, _ = store.transactions.begin_session("billing", meta, [0])
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock, read_only=True) as reader:
        for offset in range(20):
            store.transactions.commit(Moves("billing", meta, session, {0: (offset, 1)}), True)
            assert seen(reader) == {("billing", "orders", 0): Owned(offset, session)}
        assert len(store.transactions.remove("billing")) == 1
        assert seen(reader) == {}
        with pytest.raises(ReadOnly):
            reader.transactions.begin_session("billing", meta, [0])


class Life:
    """Sessions, commits and renewals on a recorded disk; and what each moment had promised."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.recorder = Recorder(root)
        self.promises: list[tuple[int, int, int]] = []
        with self.open(self.recorder) as store:
            meta = store.create_topic("orders").meta
            for life in range(3):
                session, _ = store.transactions.begin_session("billing", meta, [0])
                self.promise(2 * life + 1, -1 if life == 0 else 8 * life - 1)
                for offset in range(8 * life, 8 * life + 8):
                    store.transactions.commit(
                        Moves("billing", meta, session, {0: (offset, 1)}), offset % 2 == 1
                    )
                    if offset % 2 == 1:
                        self.promise(2 * life + 1, offset)

    def open(self, recorder: Recorder) -> Any:
        settings = stepwise(offload="off")
        return tiered.open(recorder.root / "data", settings=settings, host=Host(clock=Clock(), fs=recorder))

    def promise(self, sessions: int, offset: int) -> None:
        self.promises.append((len(self.recorder.journal), sessions, offset))

    def crashes(self) -> Any:
        def losses(index: int) -> list[Loss]:
            return [NOTHING, EVERYTHING, NAMES, BYTES, LAST, some(index)]

        return self.recorder.crashes(losses)

    def check(self, root: Path, image: Image, index: int) -> None:
        """No position that was durable is lost or goes back, and none is made up."""
        _, sessions, offset = max((item for item in self.promises if item[0] <= index), default=(0, 0, -1))
        ends = [end for at, _, end in self.promises if at > index][:1]
        with self.open(Recorder(root, image)) as store:
            found = seen(store)
            if sessions == 0 and not found:
                return
            (owned,) = found.values()
            least, most = offset, max(offset, ends[0] if ends else 23)
            assert least <= (-1 if owned.offset is None else owned.offset) <= most
            meta = store.topic("orders").meta
            with pytest.raises(Fenced):
                store.transactions.commit(Moves("billing", meta, "0" * 32, {0: (0, 1)}), None)
            store.transactions.commit(Moves("billing", meta, owned.session, {0: (24, 1)}), True)
            _, positions = store.transactions.begin_session("billing", meta, [0])
            assert positions[0].offset == 24


@pytest.mark.extended
def test_a_crash_anywhere_loses_no_durable_position(tmp_path: Path) -> None:
    life = Life(tmp_path / "life")
    crashes = list(life.crashes())
    assert len(crashes) > 100
    for number, (index, _, image) in enumerate(thinned(crashes, 3)):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        life.check(folder, image, index)
        shutil.rmtree(folder)


def test_the_transaction_log_is_the_stores_own(store: Any) -> None:
    """Users list, create and delete their topics only; the log can be read as any topic, in SQL for example."""
    meta = store.create_topic("orders").meta
    store.transactions.begin_session("billing", meta, [0])
    assert store.topics() == ["orders"]
    with pytest.raises(InvalidName, match="the store's own transaction log"):
        store.create_topic(TRANSACTIONS_TOPIC)
    with pytest.raises(InvalidName, match="remove consumers instead"):
        store.delete_topic(TRANSACTIONS_TOPIC)
    assert store.topic(TRANSACTIONS_TOPIC).scan(columns=["kind", "id"]).to_arrow().to_pylist() == [
        {"kind": "session", "id": "billing"}
    ]


def test_no_retention_takes_positions(tmp_path: Path, clock: Clock) -> None:
    settings = stepwise(retention={"age": "9h"})
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock, settings=settings) as store:
        meta = store.create_topic("orders").meta  # type: ignore[attr-defined]
        log: Any = store
        session, _ = log.transactions.begin_session("billing", meta, [0])
        log.topic(TRANSACTIONS_TOPIC).roll()
        clock.advance(1000 * 3600)
        for _ in range(3):
            store.tier(clock() // 1000)
        assert store.topic(TRANSACTIONS_TOPIC).offsets()[0].start == 0
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock, settings=settings) as store:
        assert seen(store) == {("billing", "orders", 0): Owned(None, session)}


def test_a_topic_of_that_name_from_before_is_refused(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = store.create_topic("orders").meta
    monkeypatch.setattr("tiered.store.local_store.TRANSACTIONS_TOPIC", "another")
    store.create_topic(TRANSACTIONS_TOPIC, schema=pa.schema([("a", pa.int64())]))
    with pytest.raises(ConfigError, match="is not a transaction log"):
        store.transactions.begin_session("billing", meta, [0])


@pytest.mark.parametrize(
    "name", ["", "a\nb", "\x1b[31m", "x" * 256, "é" * 128, "\ud800", None, b"billing", 7]
)
def test_names_of_consumers_are_checked(name: object) -> None:
    with pytest.raises(ConfigError, match="name of a consumer"):
        check_consumer_name(name)


def test_the_log_takes_nothing_of_the_memory_for_recent_records(tmp_path: Path, clock: Clock) -> None:
    """Which are those of topics that somebody reads."""
    with open_store(tmp_path / "data", None, clock) as store:
        topic = store.create_topic("orders")
        topic.append(b"x", sync=True)
        memory = store.context.memory.bytes  # type: ignore[attr-defined]
        assert memory > 0
        with topic.consumer("billing") as consumer:
            for turn in range(500):
                consumer.commit({0: turn % 2}, sync=turn % 100 == 0)
        assert store.context.memory.bytes == memory  # type: ignore[attr-defined]
        assert [item.offset for item in store.consumers()] == [1]


@pytest.mark.parametrize("with_transactions", [False, True])
def test_a_clean_close_leaves_little_to_read(
    tmp_path: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    with_transactions: bool,
) -> None:
    """Also in a store that has consumers and no transaction."""
    monkeypatch.setattr(log_renewal, "RENEW_RECORDS_MIN", 4096)
    monkeypatch.setattr(log_renewal, "CLOSE_RECORDS_MAX", 20)
    with open_store(tmp_path / "data", None, clock) as store:
        topic = store.create_topic("orders")
        topic.append(b"x", sync=True)
        if with_transactions:
            with store.transaction() as transaction:
                transaction.append("orders", b"y")
        with topic.consumer("billing") as consumer:
            for turn in range(101):
                consumer.commit({0: 1 - turn % 2})
        store.flush()
        before = store.topic(TRANSACTIONS_TOPIC).offsets()[0]
        with caplog.at_level("WARNING"), tiered.open(tmp_path / "data", read_only=True) as reader:
            assert [item.offset for item in reader.consumers()] == [1]
        assert store.topic(TRANSACTIONS_TOPIC).offsets()[0] == before
        assert caplog.text == ""
    with open_store(tmp_path / "data", None, clock) as store:
        log = store.topic(TRANSACTIONS_TOPIC).offsets()[0]
        assert log.end - log.start < 20
        assert [item.offset for item in store.consumers()] == [1]


def test_a_note_that_is_nested_too_deep_is_damage(tmp_path: Path) -> None:
    """A bucket that somebody else may write to has it, and a restore of that bucket reads it."""
    with tiered.open(tmp_path / "data") as store, store.transaction("t") as transaction:
        transaction.append(store.create_topic("orders"), b"x")
    with tiered.open(tmp_path / "data") as store:
        log = store.open_topics.topic(TRANSACTIONS_TOPIC)
        row = record(OUTCOMES, "", "", (), "[" * 100_000)
        append_prepared(log, prepare_record(log, row, None, None, None, 0))
    with pytest.raises(CorruptionError, match="a record of the transaction log is none"):
        tiered.open(tmp_path / "data").consumers()
