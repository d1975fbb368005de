"""A producer that repeats an append, of which the record was erased or compacted: nothing is appended again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.erasure_passes import run_passes
from tests.support.stores import open_store, stepwise
from tiered.engine.host import Host

RULES: dict[str, Any] = {"offload": {"after": "1h", "tail_interval": "off"}, "local_retention": {"age": "2h"}}
COMPACTED = RULES | {"compact_keys": {"after": "1h", "dirty": 0.01}}


@pytest.mark.extended
@pytest.mark.parametrize("way", ["erased", "compacted"])
def test_a_repeat_is_recognised_after_its_record_is_gone(
    tmp_path: Path, url: str, clock: Clock, days: Any, way: str
) -> None:
    """Here, in the next process, and after a restore; whole objects are empty, also the newest one."""
    settings = stepwise(**(COMPACTED if way == "compacted" else RULES))

    def repeated(store: tiered.Store, offsets: list[int]) -> None:
        producer = store.topic("t").producer("p")
        assert producer.next_sequence == len(offsets)
        for sequence, offset in enumerate(offsets):
            found = producer.append(b"<of b>", key="b", sequence=sequence).offset
            assert found in (offset, -1)
        assert store.topic("t").offsets()[0].end == 7

    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = store.create_topic("t")
        producer = topic.producer("p")
        offsets = [producer.append(b"<of b>", key="b", sequence=number).offset for number in range(6)]
        topic.roll()
        if way == "erased":
            topic.append(b"<of a>", key="a")
            topic.erase(["b"])
        else:
            topic.append(b"<of b> later", key="b")
        topic.roll()
        run_passes(store, clock, days, 5)
        assert topic.scan(columns=["offset"]).to_arrow()["offset"].to_pylist() == [6]
        repeated(store, offsets)
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        repeated(store, offsets)
    with tiered.restore(url, tmp_path / "restored", settings=settings, host=Host(clock=clock)) as store:
        repeated(store, offsets)
