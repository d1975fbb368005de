"""Options mean what they mean in Kafka's source, and what cannot be meant is refused in words that help."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from tiered.errors import ConfigError, InvalidName
from tiered.spark.options import EARLIEST, LATEST, Position, SourceOptions, parse_options

MARKED = f'{{"t":{{"0":1}},"@topicId":"{UUID(int=1)}",'


def parsed(**options: str) -> SourceOptions:
    return parse_options({"topic": "t", **options})


def test_a_topic_is_all_that_is_needed() -> None:
    """Everything from the earliest to the latest, as a batch read of Kafka's source."""
    assert parse_options({"subscribe": "t"}) == parse_options({"topic": "t"}) == SourceOptions("t")
    assert SourceOptions("t").starting == Position("offset", EARLIEST)
    assert SourceOptions("t").ending == Position("offset", LATEST)
    assert SourceOptions("t").fail_on_data_loss


def test_every_option_is_taken_in_any_case() -> None:
    """Spark hands names over in lower case; people write them as they like."""
    written = {
        "topic": "t", "path": "/store", "cold": "s3://b/p", "config": "tiered.toml", "endpointUrl": "http://h:1",
        "region": "eu-west-1", "startingOffsets": '{"t":{"0":5,"1":-2}}', "endingOffsets": '{"t":{"0":9,"1":-1}}',
        "startingOffsetsByTimestampStrategy": "LATEST", "fromTimestamp": "1500", "toTimestamp": "2013-06-01T00:00:00Z",
        "partitions": "1, 0,1", "key": "k", "columns": "offset, value", "includeHeaders": "True",
        "minPartitions": "8", "splitBytes": "1MiB", "failOnDataLoss": "FALSE", "maxOffsetsPerTrigger": "10",
        "kafka.bootstrap.servers": "host:9092",
    }  # fmt: skip
    expected = SourceOptions(
        topic="t", path="/store", cold="s3://b/p", config="tiered.toml", endpoint_url="http://h:1",
        region="eu-west-1", starting=Position("offset", {0: 5, 1: EARLIEST}), ending=Position("offset", {0: 9, 1: LATEST}),
        without_match="latest", from_timestamp=1500, to_timestamp=datetime(2013, 6, 1, tzinfo=UTC),
        partitions=(0, 1), key="k", columns=("offset", "value"), include_headers=True,
        tasks_min=8, split_bytes=1 << 20, fail_on_data_loss=False,
    )  # fmt: skip
    assert parse_options(written) == expected
    assert parse_options({name.lower(): value for name, value in written.items()}) == expected
    assert parse_options({name.upper(): value for name, value in written.items()}) == expected


@pytest.mark.parametrize("side", ["starting", "ending"])
def test_a_timestamp_wins_over_timestamps_and_those_over_offsets(side: str) -> None:
    """The order of Kafka's source."""
    options = {
        f"{side}Offsets": '{"t":{"0":7}}',
        f"{side}OffsetsByTimestamp": '{"t":{"0":1700}}',
        f"{side}Timestamp": "1500",
    }
    assert getattr(parsed(**options), side) == Position("timestamp", 1500)
    del options[f"{side}Timestamp"]
    assert getattr(parsed(**options), side) == Position("timestamp", {0: 1700})
    del options[f"{side}OffsetsByTimestamp"]
    assert getattr(parsed(**options), side) == Position("offset", {0: 7})


def test_an_option_that_loses_is_checked_all_the_same() -> None:
    with pytest.raises(ConfigError, match="startingOffsets"):
        parsed(startingTimestamp="1500", startingOffsets="some")


def test_column_names_with_commas_are_written_as_json() -> None:
    assert parsed(columns='["a,b", "c"]').columns == ("a,b", "c")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "exactly one of topic and subscribe"),
        ({"topic": "a", "subscribe": "a"}, "exactly one"),
        ({"topic": "a,b"}, "union"),
        ({"topic": "t", "startingoffset": "earliest"}, "did you mean startingOffsets?"),
        ({"topic": "t", "path": "/x", "location": "file:/x"}, "CREATE TEMPORARY VIEW"),
        ({"topic": "t", "pushDown": "perhaps"}, "false or true"),
        ({"topic": "t", "startingOffsets": "latest"}, "cannot start at the latest"),
        ({"topic": "t", "startingOffsets": '{"t":{"0":-1}}'}, "cannot start at the latest"),
        ({"topic": "t", "endingOffsets": "earliest"}, "cannot end at the earliest"),
        ({"topic": "t", "endingOffsets": '{"t":{"0":-2}}'}, "cannot end at the earliest"),
        ({"topic": "t", "startingOffsets": '{"t":{"0":-3}}'}, "-2 is earliest"),
        ({"topic": "t", "startingOffsets": '{"u":{"0":1}}'}, '{"t":{"0":23,"1":-2}}'),
        ({"topic": "t", "startingOffsets": '{"t":{"0":1},"u":{"0":1}}'}, '{"t":{"0":23,"1":-2}}'),
        ({"topic": "t", "startingOffsets": '{"t":{}}'}, '{"t":{"0":23,"1":-2}}'),
        ({"topic": "t", "startingOffsets": '{"t":{"0":1.5}}'}, '{"t":{"0":23,"1":-2}}'),
        ({"topic": "t", "startingOffsets": '{"t":{"0":true}}'}, '{"t":{"0":23,"1":-2}}'),
        ({"topic": "t", "startingOffsets": '{"t":{"-1":1}}'}, '{"t":{"0":23,"1":-2}}'),
        ({"topic": "t", "startingOffsets": '{"t":{"0":1}'}, '{"t":{"0":23,"1":-2}}'),
        ({"topic": "t", "startingOffsets": '{"t":{"0":1,"00":2}}'}, '{"t":{"0":23,"1":-2}}'),
        ({"topic": "t", "startingOffsets": '{"t":{"%s":1}}' % ("9" * 5000)}, '{"t":{"0":23,"1":-2}}'),
        ({"topic": "t", "startingOffsets": '{"t":{"0":1},"@topicId":7}'}, '{"t":{"0":23,"1":-2}}'),
        ({"topic": "t", "startingOffsets": MARKED + '"@lineages":{"0":1e400}}'}, '{"t":{"0":23,"1":-2}}'),
        ({"topic": "t", "startingOffsets": '{"t":{"0":9223372036854775808}}'}, '{"t":{"0":23,"1":-2}}'),
        ({"topic": "t", "startingOffsets": "[" * 100_000}, '{"t":{"0":23,"1":-2}}'),
        ({"topic": "t", "startingTimestamp": "9" * 5000}, "milliseconds since the epoch"),
        ({"topic": "t", "minPartitions": "9" * 5000}, "a number from 1"),
        ({"topic": "t", "startingTimestamp": "yesterday"}, "milliseconds since the epoch"),
        ({"topic": "t", "endingTimestamp": "9" * 20}, "out of range"),
        (
            {"topic": "t", "endingOffsetsByTimestamp": "1500"},
            "milliseconds since the epoch for each partition",
        ),
        ({"topic": "t", "endingOffsetsByTimestamp": '{"t":{"0":99999999999999999}}'}, "out of range"),
        ({"topic": "t", "startingOffsetsByTimestampStrategy": "earliest"}, "error or latest"),
        ({"topic": "t", "fromTimestamp": "2013-06-01T00:00:00"}, "with its zone"),
        ({"topic": "t", "toTimestamp": "soon"}, "with its zone"),
        ({"topic": "t", "partitions": "0,-1"}, "partition numbers"),
        ({"topic": "t", "partitions": ""}, "partition numbers"),
        ({"topic": "t", "columns": "offset,,value"}, "column names"),
        ({"topic": "t", "columns": "[1]"}, "column names"),
        ({"topic": "t", "columns": "value,Value"}, "each column once"),
        ({"topic": "t", "includeHeaders": "yes"}, "false or true"),
        ({"topic": "t", "failOnDataLoss": "no"}, "true or false"),
        ({"topic": "t", "minPartitions": "0"}, "a number from 1"),
        ({"topic": "t", "maxOffsetsPerTrigger": "-5"}, "a number from 1"),
        ({"topic": "t", "splitBytes": "0"}, "above zero"),
        ({"topic": "t", "splitBytes": "128 megs"}, "unknown unit"),
        ({"topic": "t", "path": "s3://b/p", "cold": "s3://b/q"}, "cold goes with a local path"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_options(options)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_topic_name_is_checked() -> None:
    with pytest.raises(InvalidName):
        parse_options({"topic": "../../etc"})


def test_what_has_no_meaning_in_a_batch_is_ignored_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """As Kafka's source does, so that one set of options serves a stream and its backfill."""
    assert parsed(maxOffsetsPerTrigger="10") == SourceOptions("t")
    assert "maxOffsetsPerTrigger" in caplog.text
