"""``tiered read``: it prints what a scan yields, in three formats, and goes on where it is told to."""

from __future__ import annotations

import base64
import io
import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.cli.commands import PROGRAM, one_error
from tests.support import fork_server
from tiered.cli.read import OutputFormat, Request, printer_for

Run = Callable[..., Any]


@pytest.fixture
def store(data: Path) -> Iterator[tiered.Store]:
    """A store with a writer of its own, which the command reads beside it."""
    with tiered.open(data) as store:
        yield store


@pytest.fixture
def numbers(store: tiered.Store) -> tiered.Topic:
    """Two partitions of a hundred records, one a minute from 2024 on; partition 1 begins at offset 10."""
    topic = store.create_topic("numbers", partitions=2)
    start = datetime(2024, 1, 1, tzinfo=UTC)
    for partition in range(2):
        for i in range(100):
            when = start + timedelta(minutes=i)
            topic.append(b"%d-%d" % (partition, i), partition=partition, key=str(i), timestamp=when)
    topic.flush()
    topic.delete_before(10, partition=1)
    return topic


def lines(partition: int, start: int, end: int) -> list[str]:
    return [f"{partition}-{i}" for i in range(start, end)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], lines(0, 0, 100) + lines(1, 10, 100)),
        (["--partition", 1], lines(1, 10, 100)),
        (["--from", 95], lines(0, 95, 100) + lines(1, 95, 100)),
        (["--from", "latest"], []),
        (["--to", 12], lines(0, 0, 12) + lines(1, 10, 12)),
        (["--partition", 0, "--from", 3, "--to", 3], []),
        (["--limit", 3], lines(0, 0, 3)),
        (["--limit", 0], []),
        (["--limit", 102], lines(0, 0, 100) + lines(1, 10, 12)),
        (["--since", "2024-01-01T01:38:00Z"], lines(0, 98, 100) + lines(1, 98, 100)),
        (["--since", "2024-01-01T02:39:00+01:00"], lines(0, 99, 100) + lines(1, 99, 100)),
        (["--since", "1h"], []),
        (["--since", "90y", "--partition", 1, "--limit", 1], lines(1, 10, 11)),
    ],
)
def test_what_is_asked_for_is_printed(
    tiered_: Run, numbers: tiered.Topic, arguments: list[Any], expected: list[str]
) -> None:
    """Partition after partition, in offset order; a value a line."""
    result = tiered_("read", "numbers", *arguments)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--partition", 2], "has partitions 0 to 1, not 2"),
        (["--from", 5], "offset 5 of topic 'numbers' partition 1 is gone; the log has 10 to 100"),
        (["--from", 101], "offset 101 of topic 'numbers' is not there yet; the log has 0 to 100"),
        (["--since", "2024-01-01"], "has no time zone; for UTC write 2024-01-01T00:00:00Z"),
        (["--since", "long ago"], "is neither a time such as"),
        (["--since", "99999999y"], "is neither a time such as"),
    ],
)
def test_what_is_not_there_is_said(
    tiered_: Run, numbers: tiered.Topic, arguments: list[Any], message: str
) -> None:
    assert message in one_error(tiered_("read", "numbers", *arguments))


def test_the_latest_record_of_each_key_is_printed(tiered_: Run, store: tiered.Store) -> None:
    topic = store.create_topic("changes")
    for value, key in [(b"1", "a"), (b"2", "b"), (b"3", "a"), (None, "b"), (b"4", None)]:
        topic.append(value, key=key)
    topic.flush()
    assert tiered_("read", "changes", "--latest").output.splitlines() == ["3", "4"]
    assert tiered_("read", "changes", "--latest", "--to", 2).output.splitlines() == ["1", "2"]
    for other in (["--follow"], ["--group", "g"]):
        found = tiered_("read", "changes", "--latest", *other)
        assert "--latest is of one moment: leave out --follow and --group" in one_error(found)


def test_an_arrow_stream_is_the_scan(tiered_: Run, numbers: tiered.Topic) -> None:
    output = tiered_("read", "numbers", "--format", "arrow").stdout_bytes
    assert pa.ipc.open_stream(output).read_all().equals(numbers.scan().to_arrow())


def test_an_empty_arrow_stream_is_a_stream(tiered_: Run, store: tiered.Store) -> None:
    topic = store.create_topic("empty")
    output = tiered_("read", "empty", "--format", "arrow").stdout_bytes
    assert pa.ipc.open_stream(output).read_all().equals(topic.scan().to_arrow())


def test_json_has_every_column_and_says_any_bytes(tiered_: Run, store: tiered.Store) -> None:
    topic = store.create_topic("t")
    topic.append(b"caf\xc3\xa9", key=b"\xff", headers=[("h", b"v"), ("h", None)], timestamp=1_500)
    topic.append(None, timestamp=datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC))
    topic.flush()
    first, second = map(json.loads, tiered_("read", "t", "--format", "json").stdout.splitlines())
    assert first == {
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp": "1970-01-01T00:00:01.500000Z",
        "key": None,
        "key_base64": base64.b64encode(b"\xff").decode(),
        "value": "café",
        "headers": [{"key": "h", "value": "v"}, {"key": "h", "value": None}],
    }
    assert (second["value"], second["key"], second["timestamp"]) == (
        None,
        None,
        "9999-12-31T23:59:59.999999Z",
    )


def test_each_name_in_json_has_values_of_one_kind(tiered_: Run, store: tiered.Store) -> None:
    """Whatever the bytes: who declares a column as text reads all lines, and no byte is lost or changed."""
    pairs = pa.list_(pa.struct([("k", "string"), ("v", "binary")]))
    schema = pa.schema([("b", "binary"), ("l", pa.list_(pa.binary())), ("m", pa.map_("string", "binary")), ("p", pairs), ("b_base64", "string")])  # fmt: skip
    topic = store.create_topic("t", schema=schema)
    topic.append({"b": b"text", "l": [b"a", None], "m": [("x", b"y")], "p": [{"k": "h", "v": b"v"}]})
    topic.append({"b": b"\xff", "l": [b"a", b"\xfe"], "m": [("x", b"\xfd")], "p": [{"k": "h", "v": b"\xfc"}], "b_base64": "mine"})  # fmt: skip
    topic.append({})
    topic.flush()
    text, bytes_, null = map(json.loads, tiered_("read", "t", "--format", "json").stdout.splitlines())
    names = ("b", "l", "m", "p", "b_base64")
    assert [text[name] for name in names] == ["text", ["a", None], [["x", "y"]], [{"k": "h", "v": "v"}], None]
    assert [bytes_[name] for name in names] == [None, None, None, [{"k": "h", "v": None, "v_base64": "/A=="}], "mine"]  # fmt: skip
    assert (bytes_["b_base64_"], bytes_["l_base64"], bytes_["m_base64"]) == ("/w==", ["YQ==", "/g=="], [["x", "/Q=="]])  # fmt: skip
    assert [null[name] for name in names] == [None] * 5
    assert (
        tiered_("read", "t")
        .stdout_bytes.splitlines()[1]
        .startswith(b'\xff\t["a", "\xfe"]\t[["x", "\xfd"]]\t')
    )


def test_typed_rows_in_text_and_json(tiered_: Run, store: tiered.Store) -> None:
    """Text: columns parted by tabs, and a row is always one line. JSON: numbers that it lacks are text."""
    schema = pa.schema(
        [("s", "string"), ("x", "float64"), ("ok", "bool"), ("l", pa.list_(pa.int32())), ("b", "binary")]
    )
    topic = store.create_topic("t", schema=schema)
    topic.append({"s": "tab\tnew\nline\\", "x": float("nan"), "ok": True, "l": [1, None], "b": b"\xfe"})
    topic.append({"s": None, "x": -1.5})
    topic.flush()
    assert tiered_("read", "t").stdout_bytes == (
        b"tab\\tnew\\nline\\\\\tnan\ttrue\t[1, null]\t\xfe\n\t-1.5\t\t\t\n"
    )
    first, second = map(json.loads, tiered_("read", "t", "--format", "json").stdout.splitlines())
    assert (first["s"], first["x"], first["ok"], first["l"]) == ("tab\tnew\nline\\", "NaN", True, [1, None])
    assert (second["s"], second["x"], second["ok"]) == (None, -1.5, None)


def test_a_terminal_gets_no_arrow_stream(data: Path, store: tiered.Store) -> None:
    store.create_topic("t")
    ours, theirs = pty.openpty()
    try:
        command = [*PROGRAM, "read", "t", "--format", "arrow", "--path", str(data)]
        result = fork_server.run(command, stdout=theirs, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert result.returncode == 2
    assert b"not for a terminal" in result.stderr


@pytest.mark.parametrize("output_format", ["text", pytest.param("json", marks=pytest.mark.slow), "arrow"])
def test_a_reader_that_goes_away_ends_it_quietly(
    started: Run, store: tiered.Store, output_format: str
) -> None:
    """As ``tiered read t | head -1`` does: no message, and the exit code that SIGPIPE gives."""
    topic = store.create_topic("t")
    topic.append_many([b"x" * 1000] * 20_000)
    topic.flush()
    process = started("read", "t", "--format", output_format)
    assert len(process.stdout.read(10)) == 10
    process.stdout.close()
    assert process.wait(60) == 128 + signal.SIGPIPE
    assert process.stderr.read() == b""
    process.stdout = None


def next_line(process: subprocess.Popen[bytes]) -> bytes:
    """The next line of a program's output, as soon as it is there."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], 30)
    assert readable
    return process.stdout.readline()


def test_follow_prints_what_becomes_durable_until_ctrl_c(
    started: Run, store: tiered.Store, numbers: tiered.Topic
) -> None:
    """Of every partition, one that is added later too; each line at once, not when a buffer is full."""
    process = started("read", "numbers", "--from", "latest", "--follow", bufsize=0)
    # Nothing says when it has looked for the end: append until the first record is seen.
    seen = b""
    for i in range(1_000):
        numbers.append(b"try %d" % i, partition=0, sync=True)
        if select.select([process.stdout], [], [], 0.05)[0]:
            seen = next_line(process)
            break
    assert seen.startswith(b"try ")
    while seen != b"try %d\n" % i:
        seen = next_line(process)
    numbers.append(b"other partition", partition=1, sync=True)
    assert next_line(process) == b"other partition\n"
    numbers.add_partitions(3)
    numbers.append(b"new partition", partition=2, sync=True)
    assert next_line(process) == b"new partition\n"
    numbers.roll()
    numbers.append(b"after a roll", partition=0, sync=True)
    assert next_line(process) == b"after a roll\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert process.stderr.read() == b""


def test_follow_ends_at_the_limit_and_at_the_end_asked_for(tiered_: Run, numbers: tiered.Topic) -> None:
    assert tiered_("read", "numbers", "--follow", "--limit", 2).stdout.splitlines() == lines(0, 0, 2)
    result = tiered_("read", "numbers", "--follow", "--from", 98, "--to", 99)
    assert result.stdout.splitlines() == ["0-98", "1-98"]


def test_follow_takes_no_new_topic_for_the_one_it_follows(
    data: Path, store: tiered.Store, numbers: tiered.Topic
) -> None:
    """Else it would go on at offset 100 of the new one, and show nothing of what comes before."""

    def replaced(_: float) -> None:
        store.delete_topic("numbers")
        store.create_topic("numbers", partitions=2).append_many([b"new"] * 3)
        store.flush()

    with tiered.open(data, read_only=True) as reader:
        printer = printer_for(OutputFormat.TEXT, numbers.schema, io.BytesIO())
        batches = Request(None, "latest", None, None, None).follow(reader, "numbers", printer, 0.1, replaced)
        with pytest.raises(tiered.TopicNotFound, match="created again"):
            next(batches)


def test_a_bucket_is_read_by_its_url(tiered_: Run, data: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    with tiered.open(data, cold=url) as store:
        topic = store.create_topic("t")
        topic.append_many([b"%d" % i for i in range(500)])
        topic.flush()
        assert not store.tier().failed
    result = tiered_("read", "t", "--from", 498, "--path", url, store=False)
    assert result.stdout.splitlines() == ["498", "499"]


def test_records_that_were_read_can_be_appended_as_they_are(
    tiered_: Run, store: tiered.Store, data: Path
) -> None:
    """``tiered read a | tiered append b`` copies values."""
    topic = store.create_topic("a")
    topic.append_many([b"%d" % i for i in range(5_000)])
    store.create_topic("b")
    store.close()
    text = tiered_("read", "a").stdout_bytes
    assert tiered_("append", "b", stdin=text).exit_code == 0
    assert tiered_("read", "b").stdout_bytes == text
