"""``tiered read --group``: a pipe that goes on where it stopped, and loses no record."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.cli.commands import PROGRAM, one_error

Run = Callable[..., Any]


@pytest.fixture
def orders(data: Path) -> Path:
    """Two partitions of five records in a store that no process has open."""
    with tiered.open(data) as store:
        topic = store.create_topic("orders", partitions=2)
        for i in range(10):
            topic.append(b"%d-%d" % (i % 2, i // 2), partition=i % 2)
    return data


@pytest.fixture
def served(orders: Path) -> Iterator[tiered.Store]:
    """The same store, served by this process."""
    with tiered.open(orders) as store, store.serve("127.0.0.1:0"):
        yield store


def append(root: Path, partition: int, *values: bytes) -> None:
    with tiered.open(root) as store:
        for value in values:
            store.topic("orders").append(value, partition=partition)


def positions(root: Path, name: str = "g") -> dict[int, int | None]:
    with tiered.open(root, read_only=True) as store:
        return {item.partition: item.offset for item in store.consumers() if item.consumer == name}


def test_a_second_run_goes_on_where_the_first_one_stopped(tiered_: Run, orders: Path) -> None:
    """Whatever the limit: each record is printed by exactly one run."""
    runs = [tiered_("read", "orders", "--group", "g", "--limit", 3).stdout.splitlines() for _ in range(4)]
    assert [len(lines) for lines in runs] == [3, 3, 3, 1]
    expected = [f"{partition}-{i}" for partition in range(2) for i in range(5)]
    assert [line for lines in runs for line in lines] == expected
    assert tiered_("read", "orders", "--group", "g").stdout == ""
    append(orders, 1, b"new")
    assert tiered_("read", "orders", "--group", "g").stdout == "new\n"
    assert tiered_("read", "orders", "--group", "other", "--limit", 1).stdout == "0-0\n"
    assert positions(orders) == {0: 5, 1: 6}


def test_one_partition_moves_alone(tiered_: Run, orders: Path) -> None:
    assert tiered_("read", "orders", "--group", "g", "--partition", 1, "--limit", 2).exit_code == 0
    assert positions(orders) == {1: 2}
    assert tiered_("read", "orders", "--group", "g", "--from", 4, "--partition", 0).stdout == "0-4\n"
    assert positions(orders) == {0: 5, 1: 2}


@pytest.mark.parametrize(
    ("arguments", "first"),
    [(["--from", "latest"], []), (["--from", 4], ["0-4", "1-4"]), (["--since", "1h", "--limit", 1], ["0-0"])],
)
def test_a_new_consumer_begins_where_the_options_say_and_an_old_one_at_its_position(
    tiered_: Run, orders: Path, arguments: list[Any], first: list[str]
) -> None:
    """The start is stored at once: a first run that prints nothing leaves out nothing that comes after it."""
    assert tiered_("read", "orders", "--group", "g", *arguments).stdout.splitlines() == first
    append(orders, 1, b"after")
    before = positions(orders)
    refused = one_error(tiered_("read", "orders", "--group", "g", *arguments))
    assert "has a position in topic 'orders', and goes on there: leave out --from and --since" in refused
    assert positions(orders) == before
    assert tiered_("read", "orders", "--group", "g").stdout.splitlines()[-1] == "after"


@pytest.mark.parametrize("output_format", ["json", "arrow"])
def test_every_format_has_the_columns_of_a_plain_read(tiered_: Run, orders: Path, output_format: str) -> None:
    def read(*arguments: Any) -> list[dict[str, Any]]:
        output = tiered_("read", "orders", "--format", output_format, *arguments).stdout_bytes
        if output_format == "arrow":
            rows: list[dict[str, Any]] = pa.ipc.open_stream(output).read_all().to_pylist()
            return rows
        return [json.loads(line) for line in output.splitlines()]

    plain = read()
    assert len(plain) == 10
    assert read("--group", "g") == plain
    assert read("--group", "g") == []


def test_a_typed_topic_prints_its_columns(tiered_: Run, data: Path) -> None:
    with tiered.open(data) as store:
        topic = store.create_topic("t", schema=pa.schema([("a", "string"), ("b", "int64")]))
        topic.append_many([{"a": "x", "b": 1}, {"a": None, "b": 2}])
    assert tiered_("read", "t", "--group", "g").stdout == "x\t1\n\t2\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", 3], "leave out --to, or write --limit"),
        (["--from", 1, "--since", "1h"], "leave one of them out"),
        (["--from", 99], "offset 99 is not in topic 'orders' partition 0, which has 0 to 5"),
        (["--partition", 7], "has partitions 0 to 1, not 7"),
    ],
)
def test_what_cannot_be_is_said_and_moves_nothing(
    tiered_: Run, orders: Path, arguments: list[Any], message: str
) -> None:
    assert message in one_error(tiered_("read", "orders", "--group", "g", *arguments))
    assert set(positions(orders).values()) <= {None}


def test_a_wrong_topic_creates_nothing(tiered_: Run, data: Path) -> None:
    assert "no store" in one_error(tiered_("read", "orders", "--group", "g"))
    assert not data.exists()


def test_where_no_position_can_be_committed_nothing_is_printed(
    tiered_: Run, orders: Path, tmp_path: Path
) -> None:
    """From the bucket alone, and beside a writer that serves nothing."""
    url = f"file://{tmp_path}/bucket"
    with tiered.open(orders, cold=url) as store:
        assert not store.tier().failed
        result = tiered_("read", "orders", "--group", "g")
        assert "is held by process" in one_error(result)
        assert result.stdout == ""
    result = tiered_("read", "orders", "--group", "g", "--path", url, store=False)
    assert "consumer 'g' reads only: open the store to write it" in one_error(result)
    assert result.stdout == ""


def test_a_lost_position_prints_nothing_and_says_how_to_go_on(tiered_: Run, orders: Path) -> None:
    tiered_("read", "orders", "--group", "g", "--limit", 2)
    with tiered.open(orders) as store:
        store.topic("orders").delete_before(4)
    result = tiered_("read", "orders", "--group", "g")
    assert "cannot go on at offset 2" in one_error(result)
    assert "tiered consumers reset" in result.stderr
    assert result.stdout == ""


def next_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 60)[0]
    return process.stdout.readline()


def wait_for(expected: dict[int, int | None], store: tiered.Store) -> None:
    until = time.monotonic() + 30
    while {item.partition: item.offset for item in store.consumers()} != expected:
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_follow_through_a_server_commits_as_it_goes_and_at_a_signal(
    started: Run, tiered_: Run, served: tiered.Store, number: signal.Signals
) -> None:
    """New records, those of a new partition too; nothing again and nothing left out after the signal."""
    topic = served.topic("orders")
    process = started("read", "orders", "--group", "g", "--follow", "--from", "latest", bufsize=0)
    wait_for({0: 5, 1: 5}, served)
    topic.append(b"first", partition=1, sync=True)
    assert next_line(process) == b"first\n"
    wait_for({0: 5, 1: 6}, served)
    topic.add_partitions(3)
    topic.append(b"new partition", partition=2, sync=True)
    assert next_line(process) == b"new partition\n"
    wait_for({0: 5, 1: 6, 2: 1}, served)
    topic.append(b"last", partition=0, sync=True)
    assert next_line(process) == b"last\n"
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    errors = process.stderr.read().decode()
    assert "Traceback" not in errors
    assert "is served at" in errors
    # A signal that comes before the batch is counted leaves it to the next run, and takes nothing from it.
    rest = tiered_("read", "orders", "--group", "g").stdout
    assert rest in ("", "last\n")
    wait_for({0: 6, 1: 6, 2: 1}, served)


def test_a_reader_that_goes_away_leaves_the_rest_to_the_next_run(
    started: Run, tiered_: Run, served: tiered.Store
) -> None:
    """A batch that did not fit into the pipe counts as not read, so the next run prints it from its first record on."""
    served.topic("orders").append_many(
        [{"value": b"%06d" % i + b"x" * 994, "partition": 0} for i in range(5_000)]
    )
    served.flush()
    process = started("read", "orders", "--group", "g", "--partition", 0)
    assert len(process.stdout.read(10)) == 10
    process.stdout.close()
    assert process.wait(60) == 141
    process.stdout = None
    (stored,) = (item.offset for item in served.consumers())
    # The pipe holds some of the first thousand records at most, perhaps after a batch of the five small ones.
    assert stored in (0, 5)
    rest = tiered_("read", "orders", "--group", "g", "--partition", 0).stdout_bytes.splitlines()
    assert len(rest) == 5_005 - stored
    assert rest[-5_000][:6] == b"000000"


def test_a_closed_pipe_is_noticed_while_nothing_comes(started: Run, served: tiered.Store) -> None:
    process = started("read", "orders", "--group", "g", "--follow", bufsize=0)
    for _ in range(10):
        next_line(process)
    process.stdout.close()
    assert process.wait(60) == 141
    process.stdout = None
    wait_for({0: 5, 1: 5}, served)


def test_another_owner_ends_it_with_an_error(started: Run, served: tiered.Store) -> None:
    topic = served.topic("orders")
    process = started("read", "orders", "--group", "g", "--follow", bufsize=0)
    for _ in range(10):
        next_line(process)
    wait_for({0: 5, 1: 5}, served)
    consumer = topic.consumer("g")
    topic.append(b"unowned", partition=0, sync=True)
    assert process.wait(60) == 1
    assert b"no longer owns partition 0" in process.stderr.read()
    assert consumer.position() == {0: 5, 1: 5}
    wait_for({0: 5, 1: 5}, served)


def test_a_consumer_that_runs_is_taken_over_after_a_question_alone(
    tiered_: Run, started: Run, served: tiered.Store
) -> None:
    """Its owner is a process behind the server, here this one's neighbour, until that has ended."""
    pipe = started("read", "orders", "--group", "g", "--follow", bufsize=0)
    for _ in range(10):
        next_line(pipe)
    wait_for({0: 5, 1: 5}, served)
    (owner,) = {item.note for item in served.consumers()}
    assert owner.endswith(f", process {pipe.pid}")

    refused = tiered_("read", "orders", "--group", "g")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"to take consumer g of topic orders over from {owner} needs --yes" in refused.stderr
    assert {item.note for item in served.consumers()} == {owner}
    assert tiered_("read", "orders", "--group", "g", "--yes").exit_code == 0
    served.topic("orders").append(b"unowned", partition=0, sync=True)
    assert pipe.wait(60) == 1
    assert b"no longer owns partition 0" in pipe.stderr.read()

    other = started("read", "orders", "--group", "g", "--limit", 0, "--yes")
    assert other.wait(60) == 0
    assert tiered_("read", "orders", "--group", "g").stdout == "unowned\n"  # its owner has ended


def test_follow_alone_says_that_nobody_can_append(started: Run, orders: Path) -> None:
    process = started("read", "orders", "--group", "g", "--follow", "--limit", 10)
    assert process.wait(60) == 0
    assert b"serve the store by `tiered serve`" in process.stderr.read()
    assert positions(orders) == {0: 5, 1: 5}


def test_records_that_no_stdout_takes_are_not_read(orders: Path) -> None:
    """`>&-` prints nothing, and so commits nothing; `>/dev/null` is a wish of its own."""
    command = [*PROGRAM, "read", "orders", "--group", "g", "--path", str(orders)]
    closed = subprocess.run(
        ["sh", "-c", '"$@" >&-', "-", *command], stderr=subprocess.PIPE, timeout=60, check=False
    )
    assert (closed.returncode, closed.stderr.count(b"stdout is closed")) == (1, 1)
    assert positions(orders) == {}
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60, check=False).returncode == 0
    assert positions(orders) == {0: 5, 1: 5}
