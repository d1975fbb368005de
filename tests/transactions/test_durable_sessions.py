"""A session that has begun fences the older one also after a power cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.disk_model import EVERYTHING
from tests.support.recorder import Recorder
from tests.support.stores import let_go
from tests.transactions.lives import opened
from tiered.errors import Fenced
from tiered.transactions.decision import Decision, Moves


def after_power_cut(recorder: Recorder, root: Path) -> Any:
    """The store as it is if the disk loses all that no sync has made durable."""
    root.mkdir()
    now = len(recorder.journal)
    cuts = recorder.crashes(lambda index: [EVERYTHING] if index == now else [])
    (image,) = [image for _, _, image in cuts]
    return opened(Recorder(root, image))


def test_an_older_session_of_a_transaction_commits_nothing(tmp_path: Path) -> None:
    (tmp_path / "life").mkdir()
    recorder = Recorder(tmp_path / "life")
    store = opened(recorder)
    older = store.transactions.begin_transaction("etl")
    newer = store.transactions.begin_transaction("etl")
    with after_power_cut(recorder, tmp_path / "cut") as again:
        with pytest.raises(Fenced):
            again.transactions.check_session(Decision("etl", older, ()))
        again.transactions.check_session(Decision("etl", newer, ()))
    let_go(store)


def test_an_older_session_of_a_consumer_commits_nothing(tmp_path: Path) -> None:
    (tmp_path / "life").mkdir()
    recorder = Recorder(tmp_path / "life")
    store = opened(recorder)
    meta = store.create_topic("orders").meta
    older, newer = [store.transactions.begin_session("billing", meta, [0])[0] for _ in range(2)]
    with after_power_cut(recorder, tmp_path / "cut") as again:
        with pytest.raises(Fenced):
            again.transactions.commit(Moves("billing", meta, older, {0: (0, 1)}), True)
        again.transactions.commit(Moves("billing", meta, newer, {0: (0, 1)}), True)
    let_go(store)
