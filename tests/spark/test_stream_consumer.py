"""A stream publishes its progress as the positions of a consumer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiered
from tiered.errors import ConfigError

pytest.importorskip("pyspark.sql.streaming.datasource")

from tests.spark.micro_batches import Stream, fill
from tiered.flight.client.connection import Connection


def test_the_progress_of_a_query_is_published_as_a_consumer(tmp_path: Path) -> None:
    """From what Spark has completed, over restarts and new partitions; a name that somebody else owns is left alone."""
    with tiered.open(tmp_path / "data") as store, store.serve("127.0.0.1:0") as server:
        store.create_topic("t", partitions=2)
        fill(store, 10, 30)

        def at() -> dict[int, int | None]:
            return {item.partition: item.offset for item in store.consumers() if item.consumer == "job"}

        stream = Stream(server.location, "t", startingOffsets="earliest", consumer="job")
        start = stream.initial()
        end = stream.latest(start)
        assert at() == {}
        stream.reader.commit(json.loads(end))
        assert at() == {0: 10, 1: 30}
        assert all(item.note.startswith("Spark query on ") for item in store.consumers())
        fill(store, 5, 0)
        again = Stream(str(tmp_path / "data"), "t", consumer="job")  # the directory names the server
        later = again.latest(end)
        again.reader.commit(json.loads(later))
        assert at() == {0: 15, 1: 30}
        stream.reader.commit(json.loads(end))  # fenced, and the query goes on
        assert at() == {0: 15, 1: 30}
        store.topic("t").add_partitions(3)
        fill(store, 0, 0, 7)
        again.reader.commit(json.loads(again.latest(later)))
        assert at() == {0: 15, 1: 30, 2: 7}
        with store.topic("t").consumer("job") as consumer:
            assert consumer.position() == {0: 15, 1: 30, 2: 7}
            fill(store, 1, 1, 1)
            again.reader.commit(json.loads(again.latest(later)))
            Stream(server.location, "t", consumer="job").reader.commit(json.loads(again.latest(later)))
            assert at() == {0: 15, 1: 30, 2: 7}
            consumer.commit({0: 16})
        with pytest.raises(ConfigError, match="owned by .*process"):
            Stream(server.location, "t", consumer="job").initial()
    with pytest.raises(ConfigError, match="stored by the process that writes the store"):
        Stream(str(tmp_path / "data"), "t", consumer="job").initial()
    with pytest.raises(ConfigError, match="name of a consumer"):
        Stream(str(tmp_path / "data"), "t", consumer="a\nb")


def test_a_server_that_is_away_is_no_error_of_the_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tiered.open(tmp_path / "data") as store:
        store.create_topic("t", partitions=2)
        fill(store, 1, 1)
        with store.serve("127.0.0.1:0") as server:
            stream = Stream(server.location, "t", startingOffsets="earliest", consumer="job")
            end = json.loads(stream.latest(stream.initial()))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "pauses", lambda _: iter(()))
            stream.reader.commit(end)
        assert "published with a later micro-batch" in caplog.text
        assert store.consumers() == []
