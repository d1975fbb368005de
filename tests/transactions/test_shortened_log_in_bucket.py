"""The start of the transaction log moves in the bucket only behind what the bucket has, or a lost disk takes what was written anew."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.disk_model import EVERYTHING, Image
from tests.support.recorder import Recorder
from tests.support.stores import open_store, stepwise
from tests.transactions.lives import BUCKET, check_each_bucket, host_of, opened
from tiered.engine.host import Host
from tiered.format.schema import TRANSACTIONS_TOPIC
from tiered.tiering import publish_actions, tail_survey
from tiered.transactions import log_renewal


def restored(tmp_path: Path, clock: Clock, number: int, at: int | None = None) -> Any:
    return tiered.restore(
        f"file://{tmp_path}/bucket",
        tmp_path / f"{number}",
        at=at,
        settings=stepwise(),
        host=Host(clock=clock),
    )


@pytest.mark.extended
def test_no_moment_of_the_bucket_lacks_positions_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where what the log has written anew takes several objects."""
    monkeypatch.setattr(log_renewal, "RENEW_RECORDS_MIN", 8)
    for module in (tail_survey, publish_actions):
        monkeypatch.setattr(module, "TAIL_BYTES_MAX", 1)
    recorder = Recorder(tmp_path / "life")
    (tmp_path / "life").mkdir()
    names = ["billing", "audit", "report"]
    with opened(recorder, BUCKET) as store:
        topic = store.create_topic("orders")
        topic.append_many([b"%d" % i for i in range(20)])
        topic.publish()
        consumers = [topic.consumer(name) for name in names]
        for offset in range(1, 13):
            for consumer in consumers:
                consumer.commit({0: offset}, sync=True)
            if offset == 2:
                store.topic(TRANSACTIONS_TOPIC).publish()
                since = len(recorder.journal)
            if offset % 8 == 0:
                store.tier()
    seen = dict.fromkeys(names, 2)

    def check(root: Path, image: Image) -> None:
        with tiered.restore(
            BUCKET, root / "restored", settings=stepwise(), host=host_of(Recorder(root, image))
        ) as store:
            found = {item.consumer: item.offset for item in store.consumers()}
        assert all(found[name] >= seen[name] for name in names)
        seen.update(found)

    crashes = [crash for crash in recorder.crashes(lambda _: [EVERYTHING]) if crash[0] >= since]
    assert check_each_bucket(crashes, tmp_path, 1, check) > 10


@pytest.mark.parametrize("publish", [True, False], ids=["pass", "tail"])
def test_a_transaction_is_not_torn_when_the_disk_is_lost_after_a_restore_to_a_time(
    tmp_path: Path, clock: Clock, *, publish: bool
) -> None:
    """The restored store writes its log anew, and the bucket has the rows of one of two partitions."""
    with open_store(tmp_path / "0", f"file://{tmp_path}/bucket", clock) as store:
        for name in ("one", "two"):
            store.create_topic(name)
        with store.transaction() as transaction:
            transaction.append("one", b"1")
            transaction.append("two", b"2")
        store.topic("one").publish()
        at = clock() // 1000
        clock.advance(60)
        with store.transaction() as transaction:
            transaction.append("one", b"undone")
        store.topic("one").publish()
    clock.advance(60)
    with restored(tmp_path, clock, 1, at) as store:
        if publish:
            store.tier()
        else:
            store.topic(TRANSACTIONS_TOPIC).publish()
        shutil.copytree(tmp_path / "bucket", tmp_path / "then")
    shutil.rmtree(tmp_path / "bucket")
    (tmp_path / "then").rename(tmp_path / "bucket")
    with tiered.open(f"file://{tmp_path}/bucket") as reader:
        assert reader.snapshot(["one", "two"]).ends == {"one": {0: 0}, "two": {0: 0}}
    with restored(tmp_path, clock, 2) as store:
        assert {name: store.topic(name).offsets()[0].end for name in ("one", "two")} == {"one": 1, "two": 1}
