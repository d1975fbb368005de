"""What one way of calling takes or refuses, the others take or refuse alike: in process, over Flight, one record or many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiered


@pytest.fixture(params=["in process", "over Flight"])
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A topic of records with one record."""
    with tiered.open(tmp_path / "store") as store:
        mine = store.create_topic("t")
        mine.append(b"one")
        if request.param == "in process":
            yield mine
        else:
            with store.serve("127.0.0.1:0") as server, tiered.open(server.location) as remote:
                yield remote.topic("t")


CALLS: dict[str, tuple[type[Exception], Callable[[Any, Any], object]]] = {
    "read partition": (tiered.TopicNotFound, lambda topic, odd: list(topic.read(odd))),
    "read offset": (tiered.ConfigError, lambda topic, odd: list(topic.read(0, odd))),
    "read limit": (tiered.ConfigError, lambda topic, odd: list(topic.read(0, limit=odd))),
    "scan partition": (tiered.TopicNotFound, lambda topic, odd: topic.scan([odd])),
    "scan offset": (tiered.ConfigError, lambda topic, odd: topic.scan(start_offset=odd)),
    "scan time": (tiered.SchemaMismatch, lambda topic, odd: topic.scan(start_timestamp=odd)),
    "scan limit": (tiered.ConfigError, lambda topic, odd: topic.scan(limit=odd)),
    "key": (tiered.SchemaMismatch, lambda topic, odd: topic.append(b"two", key=odd)),
    "time": (tiered.SchemaMismatch, lambda topic, odd: topic.append(b"two", timestamp=odd)),
    "partition": (tiered.TopicNotFound, lambda topic, odd: topic.append(b"two", partition=odd)),
    "expected offset": (tiered.ConfigError, lambda topic, odd: topic.append(b"two", expected_offset=odd)),
    "headers": (tiered.SchemaMismatch, lambda topic, odd: topic.append(b"two", headers=odd)),
    "headers of many": (
        tiered.SchemaMismatch,
        lambda topic, odd: topic.append_many([{"value": b"two", "headers": odd}]),
    ),
}


@pytest.mark.extended
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "odd",
    [np.timedelta64(5, "s"), np.timedelta64(5, "ns"), np.timedelta64("NaT"), np.array([1, 2])],
    ids=repr,
)
def test_durations_and_arrays_are_no_numbers(topic: Any, call: str, odd: Any) -> None:
    """NumPy counts its durations among the integers, and an array has no truth: both are refused by a typed error."""
    error, calls = CALLS[call]
    with pytest.raises(error):
        calls(topic, odd)
    assert topic.offsets()[0].end == 1


@pytest.mark.parametrize("odd", [True, False, -1, 1.0, "1", np.float64(1), np.int8(-1), 1 << 63], ids=repr)
def test_an_expected_offset_is_an_offset(topic: Any, odd: Any) -> None:
    with pytest.raises(tiered.ConfigError, match="expected_offset is an int from 0 to"):
        topic.append(b"two", expected_offset=odd)
    assert topic.append(b"two", expected_offset=np.uint64(1)) == (0, 1)


@pytest.mark.parametrize("odd", [0, 0.0, False], ids=repr)
def test_headers_that_are_empty_are_headers_still(topic: Any, odd: Any) -> None:
    for call in ("headers", "headers of many"):
        with pytest.raises(tiered.SchemaMismatch):
            CALLS[call][1](topic, odd)
    assert topic.offsets()[0].end == 1


def test_empty_headers_are_none(topic: Any) -> None:
    for empty in ({}, [], (), iter([])):
        topic.append(b"two", headers=empty)
    assert [record.headers for record in topic.read()] == [()] * 5
    assert len(set(map(str, topic.scan().to_arrow()["headers"]))) == 1


@pytest.mark.parametrize("large", [2**63, 2**64, 10**30, np.uint64(2**63)], ids=repr)
def test_numbers_beyond_every_offset(topic: Any, large: Any) -> None:
    """A limit or an end that no log reaches is none; a start there finds nothing."""
    assert topic.scan(limit=large).to_arrow().num_rows == 1
    assert topic.scan(end_offset={0: large}).to_arrow().num_rows == 1
    assert topic.scan(start_offset=large).to_arrow().num_rows == 0
    assert len(list(topic.read(limit=large))) == 1
    for beyond in (lambda: list(topic.read(0, large)), lambda: topic.delete_before(large)):
        with pytest.raises(tiered.OffsetOutOfRange):
            beyond()
    with pytest.raises(tiered.OffsetOutOfRange):
        topic.scan(start_offset=-int(large)).to_arrow()


@pytest.mark.parametrize(
    "odd", [5.0, np.array(5), object()], ids=["float", "array without a dimension", "object"]
)
def test_what_cannot_be_gone_through_is_no_list(topic: Any, odd: Any) -> None:
    for asked in ({"columns": odd}, {"partitions": odd}, {"filter": ("value", "in", odd)}):
        with pytest.raises(tiered.ConfigError):
            topic.scan(**asked)
    with pytest.raises(tiered.SchemaMismatch):
        topic.append_many(odd)
    with pytest.raises(tiered.ConfigError, match="snapshot takes a list of topics"):
        topic.store.snapshot(odd)


@pytest.mark.parametrize("odd", [None, 5, b"t", [], object()], ids=["None", "int", "bytes", "list", "object"])
def test_a_transaction_takes_topics_and_consumers(topic: Any, odd: Any) -> None:
    """What is neither is refused, and what the transaction had is committed."""
    with topic.store.transaction() as transaction:
        transaction.append(topic, b"two")
        for call in (
            lambda: transaction.append(odd, b"three"),
            lambda: transaction.append_many(odd, [b"three"]),
            lambda: transaction.append_batch(odd, {"value": [b"three"]}),
        ):
            with pytest.raises(tiered.ConfigError, match="takes a topic or its name, not"):
                call()
        with pytest.raises(tiered.ConfigError, match="takes a consumer, not"):
            transaction.commit_position(odd)
    assert [record.value for record in topic.read()] == [b"one", b"two"]


@pytest.mark.parametrize("large", [2**63, 2**64, 10**30], ids=repr)
def test_a_poll_for_more_than_any_log_has(topic: Any, large: int) -> None:
    topic.flush()
    assert sum(batch.num_rows for batch in topic.consumer("c").poll(0, large)) == 1
