"""``tiered append``: what goes in is what is stored, whatever the format; what cannot go in is named."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tests.cli.commands import one_error
from tests.support.waiting import wait_until
from tiered.cli.sources import READ_BYTES, find_source, read_csv, read_lines
from tiered.demo.flights_file import flights_path
from tiered.errors import RecordTooLarge
from tiered.format.record import partition_of

Run = Callable[..., Any]


def values(data: Path, topic: str = "t") -> list[Any]:
    with tiered.open(data, read_only=True) as store:
        return store.topic(topic).scan(columns=["value"]).to_arrow().column(0).to_pylist()


class Dribble(io.BytesIO):
    """A pipe that delivers a few bytes at a time, and tells how much it has delivered."""

    def __init__(self, content: bytes, step: int) -> None:
        super().__init__(content)
        self._step = step

    def read1(self, size: int | None = -1) -> bytes:
        return super().read1(min(self._step, size or self._step) if size != -1 else self._step)


@given(
    lines=st.lists(st.binary().filter(lambda line: b"\n" not in line)),
    step=st.integers(1, 20),
    end=st.booleans(),
)
def test_lines_are_cut_at_newlines_wherever_the_pipe_cuts(lines: list[bytes], step: int, end: bool) -> None:
    """Every line once, in order, numbered; the last one with or without its newline."""
    content = b"".join(line + b"\n" for line in lines)
    if lines and lines[-1] and not end:
        content = content[:-1]
    pieces = list(read_lines(Dribble(content, step), "stdin", 1 << 20))
    assert [line for piece in pieces for line in piece.lines] == lines
    number = 1
    for piece in pieces:
        assert piece.first == number
        number += len(piece.lines)


def test_lines_are_read_as_they_are_needed() -> None:
    """A file of any size is never in memory whole."""
    stream = io.BytesIO(b"0123456789\n" * 1_000_000)
    next(read_lines(stream, "big", 1 << 20))
    assert stream.tell() <= READ_BYTES


def test_a_line_without_end_is_not_read_to_its_end() -> None:
    stream = io.BytesIO(b"short\n" + bytes(50 << 20))
    with pytest.raises(RecordTooLarge, match="big line 2"):
        list(read_lines(stream, "big", 1 << 20))
    assert stream.tell() < 4 << 20


def test_a_long_line_is_copied_once_not_at_each_piece() -> None:
    class Pipe(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            return super().read1(1 << 12)

    started = time.process_time()
    (piece,) = read_lines(Pipe(bytes(16 << 20)), "stdin", 32 << 20)
    assert [len(line) for line in piece.lines] == [16 << 20]
    assert time.process_time() - started < 2  # it was 4,096 copies of up to 16 MiB


@given(
    rows=st.lists(st.lists(st.text('a,"\r\n\xe9 N', max_size=6), min_size=2, max_size=2), min_size=1),
    step=st.integers(1, 9),
    style=st.sampled_from(
        [("\r\n", csv.QUOTE_MINIMAL), ("\r\n", csv.QUOTE_ALL), ("\n", csv.QUOTE_ALL), ("\r", csv.QUOTE_ALL)]
    ),
)
def test_csv_is_cut_at_ends_of_rows_wherever_the_pipe_cuts(
    rows: list[list[str]], step: int, style: tuple[str, Any]
) -> None:
    """Every row once, in order, and every byte counted; quotes hold what parts fields and rows elsewhere."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=style[0], quoting=style[1])
    writer.writerows([["x", "y"], *rows])
    content = text.getvalue().encode()
    schema = pa.schema([("x", "string"), ("y", "string")])
    pieces = list(read_csv(Dribble(content, step), "stdin", schema, 1 << 20))
    assert [[row["x"] or "", row["y"] or ""] for table, _ in pieces for row in table.to_pylist()] == rows
    assert sum(read for _, read in pieces) == len(content)


def test_a_csv_row_without_end_is_not_read_to_its_end() -> None:
    stream = io.BytesIO(b'a\n"' + bytes(50 << 20))
    with pytest.raises(RecordTooLarge, match="a quote may be open"):
        list(read_csv(stream, "big", pa.schema([("a", "binary")]), 1 << 20))
    assert stream.tell() < 4 << 20


def test_csv_text_is_what_is_written_and_only_nothing_is_null(
    tiered_: Run, data: Path, tmp_path: Path
) -> None:
    """A country that is written NA, a value that is the word null; of a number they say that there is none."""
    schema = tmp_path / "schema.json"
    schema.write_text('{"s": "string", "b": "binary", "n": "int64"}')
    tiered_("create", "t", "--schema", schema)
    text = 's,b,n\nNA,null,NA\nnan,,1\n,"",2\n'
    assert tiered_("append", "t", "--format", "csv", stdin=text).exit_code == 0
    with tiered.open(data, read_only=True) as store:
        rows = store.topic("t").scan(columns=["s", "b", "n"]).to_arrow().to_pylist()
    assert [tuple(row.values()) for row in rows] == [("NA", b"null", None), ("nan", None, 1), (None, None, 2)]


def test_a_line_is_a_value_whatever_its_bytes(tiered_: Run, data: Path) -> None:
    tiered_("create", "t")
    lines = [
        b"",
        b"plain",
        bytes(range(256)).replace(b"\n", b""),
        b"\xff\xfe",
        b"end\r",
        " ünïcode ".encode(),
    ] * 100
    result = tiered_("append", "t", "-", stdin=b"\n".join(lines) + b"\n")
    assert result.stdout.startswith("appended 600 records to t, all durable:")
    assert values(data) == lines
    assert tiered_("read", "t").stdout_bytes == b"\n".join(lines) + b"\n"


def test_files_are_appended_in_order_and_stdin_among_them(tiered_: Run, data: Path, tmp_path: Path) -> None:
    tiered_("create", "t")
    (tmp_path / "a.txt").write_bytes(b"1\n2\n")
    (tmp_path / "b.log").write_bytes(b"5")
    assert tiered_("append", "t", tmp_path / "a.txt", "-", tmp_path / "b.log", stdin=b"3\n4\n").exit_code == 0
    assert values(data) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("count", [3, 2_000])
def test_json_fields_are_key_and_timestamp(tiered_: Run, data: Path, tmp_path: Path, count: int) -> None:
    """The value is the line as it stands; the key places it; few records go another way than many."""
    tiered_("create", "t", "--partitions", 4)
    rows = [
        {
            "who": f"k{i % 7}" if i % 3 else i,
            "at": f"2024-01-01T00:00:{i % 60:02}+01:00" if i % 2 else i,
            "n": i,
        }
        for i in range(count)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n\n".join(json.dumps(row) for row in rows))
    assert tiered_("append", "t", file, "--key", "who", "--timestamp", "at").exit_code == 0
    with tiered.open(data, read_only=True) as store:
        found = store.topic("t").scan().to_arrow().to_pylist()
    assert sorted(json.loads(item["value"])["n"] for item in found) == list(range(count))
    for item in found:
        row = json.loads(item["value"])
        assert item["value"] == json.dumps(row).encode()
        assert item["key"] == str(row["who"]).encode()
        assert item["partition"] == partition_of(item["key"], 4)
        seconds = item["timestamp"].timestamp()
        assert seconds == (
            row["at"] / 1000 if isinstance(row["at"], int) else 1704063600 + int(row["at"][17:19])
        )


def test_typed_data_is_the_same_from_every_format(tiered_: Run, data: Path, tmp_path: Path) -> None:
    """JSON lines, CSV and Parquet of the same flights store the same rows."""
    flights = pq.read_table(flights_path()).slice(4_000, 30_000)
    pq.write_table(flights, tmp_path / "flights.parquet")
    text = flights.set_column(
        0, "scheduled_departure", pa.compute.strftime(flights.column(0), "%Y-%m-%dT%H:%M:%SZ")
    )
    pa_csv.write_csv(text, tmp_path / "flights.csv")
    with (tmp_path / "flights.jsonl").open("w") as file:
        for row in text.to_pylist():
            file.write(json.dumps({name: value for name, value in row.items() if value is not None}) + "\n")
    for kind in ("parquet", "csv", "jsonl"):
        tiered_(
            "create",
            kind,
            "--schema",
            flights_path(),
            "--timestamp",
            "scheduled_departure",
            "--key",
            "carrier",
        )
        result = tiered_("append", kind, tmp_path / f"flights.{kind}", "--sync")
        assert result.stdout.startswith(f"appended 30,000 records to {kind}"), result.stderr
        with tiered.open(data, read_only=True) as store:
            topic = store.topic(kind)
            assert topic.scan(columns=topic.schema.names).to_arrow().equals(flights.cast(topic.schema))


def test_integer_times_in_json_are_milliseconds(tiered_: Run, data: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"at": "timestamp", "day": "date"}')
    tiered_("create", "t", "--schema", schema, "--timestamp", "at")
    assert (
        tiered_("append", "t", "--format", "jsonl", stdin='{"at": 1500, "day": "1970-01-02"}\n').exit_code
        == 0
    )
    with tiered.open(data, read_only=True) as store:
        row = store.topic("t").scan().to_arrow().to_pylist()[0]
    assert row["at"].timestamp() == row["timestamp"].timestamp() == 1.5
    assert row["day"].isoformat() == "1970-01-02"


def test_integer_times_that_the_first_lines_lack(tiered_: Run, data: Path, tmp_path: Path) -> None:
    """The first line says nothing of a column that it lacks; a bad line is named by its own number."""
    schema = tmp_path / "schema.json"
    schema.write_text('{"n": "int64", "at": "timestamp"}')
    tiered_("create", "t", "--schema", schema)
    text = '{"n": 1}\n{"n": 2, "at": null}\n{"n": 3, "at": 1500}\n'
    assert tiered_("append", "t", "--format", "jsonl", stdin=text).exit_code == 0
    with tiered.open(data, read_only=True) as store:
        times = store.topic("t").scan().to_arrow().column("at").to_pylist()
    assert [None if time is None else time.timestamp() for time in times] == [None, None, 1.5]
    broken = one_error(tiered_("append", "t", "--format", "jsonl", stdin='{"n": 1}\n\n{"n": 2'))
    assert "stdin line 3: not JSON" in broken


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_time_without_a_zone_is_refused(tiered_: Run, data: Path, tmp_path: Path, kind: str) -> None:
    """It would be read as UTC by some and as local time by others."""
    schema = tmp_path / "schema.json"
    schema.write_text('{"at": "timestamp"}')
    tiered_("create", "t", "--schema", schema)
    text = "at\n2024-01-01T00:00:00\n" if kind == "csv" else '{"at": "2024-01-01T00:00:00"}\n'
    message = one_error(tiered_("append", "t", "--format", kind, stdin=text))
    assert "zone offset" in message
    assert "call assume_timezone" not in message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "stdin line 3: not JSON"),
        ("[1]", "stdin line 3: list instead of a JSON object"),
        ('{"k": 1.5, "t": null}', "stdin line 3: a key is bytes, str or int, not float"),
        ('{"k": "x", "t": "yesterday"}', "stdin line 3: 'yesterday' is not a time"),
        (
            '{"k": "x", "t": "2024-01-01T00:00:00"}',
            "stdin line 3: 2024-01-01T00:00:00 has no time zone; for UTC write 2024-01-01T00:00:00Z",
        ),
        ("[" * 100_000, "stdin line 3: "),
    ],
)
def test_a_bad_line_is_named(tiered_: Run, data: Path, line: str, message: str) -> None:
    tiered_("create", "t")
    arguments = ("append", "t", "--format", "jsonl", "--key", "k", "--timestamp", "t")
    assert message in one_error(tiered_(*arguments, stdin='{"k": "a", "t": null}\n\n' + line + "\n"))


def test_a_field_that_lines_lack_is_said_once(tiered_: Run) -> None:
    """A mistyped --key would leave a whole topic without keys, and nothing takes it back."""
    tiered_("create", "t")
    arguments = ("append", "t", "--format", "jsonl", "--key", "k", "--timestamp", "t")
    result = tiered_(*arguments, stdin='{"k": "a", "t": 1}\n{"k": null, "T": 1}\n{"t": 1}\n{}\n')
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "warning: stdin line 2 has no field 't', as --key or --timestamp says",
        "warning: stdin line 3 has no field 'k', as --key or --timestamp says",
    ]


@pytest.mark.extended
def test_an_error_in_the_middle_says_how_much_is_there(tiered_: Run, data: Path, tmp_path: Path) -> None:
    """So that the rest can be appended, and nothing twice."""
    tiered_("create", "t")
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"a": 1}\n' * 300_000 + b"broken\n")
    message = one_error(tiered_("append", "t", file))
    assert "line 300001: not JSON" in message
    count = int(message.rpartition("; ")[2].split()[0].replace(",", ""))
    assert message.endswith("records before that were appended")
    assert len(values(data)) == count > 200_000


def test_a_file_that_cannot_be_read_says_how_much_is_there(
    tiered_: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped name is found before anything is appended, a file that fails later is said with what was."""
    tiered_("create", "t")
    for name in ("first", "second"):
        (tmp_path / name).write_text("a\nb\n")
    assert "missing: No such file" in one_error(
        tiered_("append", "t", tmp_path / "first", tmp_path / "missing")
    )
    assert values(data) == []

    def fail_in_second(stream: Any, name: str, line_bytes_max: int) -> Any:
        if name.endswith("second"):
            raise OSError(errno.EIO, "Input/output error")
        return read_lines(stream, name, line_bytes_max)

    monkeypatch.setattr("tiered.cli.append.read_lines", fail_in_second)
    message = one_error(tiered_("append", "t", tmp_path / "first", tmp_path / "second"))
    assert message == "error: Input/output error; 2 records before that were appended"


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        (["--format", "lines"], "x", "topic 't' has columns; write --format jsonl, csv or parquet"),
        (["--format", "csv"], "b\n1\n", "stdin: unknown column 'b'"),
        (["--format", "csv"], "a\nx\n", "stdin: In CSV column #0"),
        (["--format", "csv"], "", "stdin: Empty CSV file"),
        (["--format", "jsonl"], '{"a": 1, "b": 2}', "stdin: unknown column 'b'"),
        (["--format", "jsonl"], '{"a": "x"}', "stdin line 1: "),
        (["--format", "jsonl", "--key", "a"], "", "--key and --timestamp name fields of JSON lines"),
        (["--format", "parquet"], "", "Parquet is read from its end"),
    ],
)
def test_what_a_typed_topic_does_not_take(
    tiered_: Run, tmp_path: Path, arguments: list[str], text: str, message: str
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"a": "int64"}')
    tiered_("create", "t", "--schema", schema)
    assert message in one_error(tiered_("append", "t", *arguments, stdin=text))


def test_a_file_that_is_no_parquet_is_named(tiered_: Run, tmp_path: Path) -> None:
    tiered_("create", "t")
    file = tmp_path / "x.parquet"
    file.write_text("this is no Parquet file at all")
    assert "x.parquet: " in one_error(tiered_("append", "t", file))
    assert "is a directory" in one_error(tiered_("append", "t", tmp_path))


def test_a_compressed_file_is_not_taken_for_lines(tiered_: Run, tmp_path: Path) -> None:
    tiered_("create", "t")
    file = tmp_path / "a log.gz"
    file.write_bytes(gzip.compress(b"one\ntwo\n"))
    assert f"gzip -dc '{file}' | tiered append" in one_error(tiered_("append", "t", file))
    assert tiered_("append", "t", file, "--format", "lines").exit_code == 0  # its bytes are wanted


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("r.jsonl.gz", "gzip -dc {} | tiered append … --format jsonl"),
        ("r.CSV.zst", "zstd -dc {} | tiered append … --format csv"),
        ("r.log.Z", "gzip -dc {} | tiered append …"),
        ("r.json.zip", "unzip -p {} | tiered append … --format jsonl"),
        ("r.tgz", "tar -xOf {} | tiered append …"),
        ("r.tar.gz", "tar -xOf {} | tiered append …"),
        ("r.pq.br", "unpack it to a file first, as Parquet cannot be read from a pipe"),
    ],
)
def test_how_to_unpack_says_what_a_pipe_cannot(tmp_path: Path, name: str, advice: str) -> None:
    file = tmp_path / name
    file.touch()
    with pytest.raises(tiered.ConfigError) as caught:
        find_source(str(file), None)
    assert str(caught.value).endswith(advice.format(file))


def test_tables_go_into_a_record_topic_by_its_columns(tiered_: Run, data: Path, tmp_path: Path) -> None:
    tiered_("create", "t")
    text = "key,value,timestamp\nk,v,2024-01-01T00:00:00Z\n"
    assert tiered_("append", "t", "--format", "csv", stdin=text).exit_code == 0
    with tiered.open(data, read_only=True) as store:
        (record,) = store.topic("t").read()
    assert (record.key, record.value, record.timestamp.year) == (b"k", b"v", 2024)
    message = one_error(tiered_("append", "t", "--format", "csv", stdin="a,b\n1,2\n"))
    assert message.endswith("to append each line as a value, write --format lines")


@pytest.mark.parametrize("count", [1, 1_000])
def test_a_partition_can_be_chosen(tiered_: Run, data: Path, count: int) -> None:
    tiered_("create", "t", "--partitions", 3)
    assert tiered_("append", "t", "--partition", 2, stdin="x\n" * count).exit_code == 0
    with tiered.open(data, read_only=True) as store:
        assert {item.partition: item.end for item in store.topic("t").offsets().values()} == {
            0: 0,
            1: 0,
            2: count,
        }
    assert "has partitions 0 to 2" in one_error(tiered_("append", "t", "--partition", 3, stdin="x\n"))


def test_a_log_gets_no_progress_bar(tiered_: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Services for continuous integration ask for colours where no terminal is."""
    tiered_("create", "t")
    (tmp_path / "lines").write_text("a\nb\n")
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert tiered_("append", "t", tmp_path / "lines").stderr == ""


def test_an_empty_input_appends_nothing(tiered_: Run, data: Path) -> None:
    tiered_("create", "t")
    for kind in ("lines", "jsonl"):
        assert tiered_("append", "t", "--format", kind, stdin="").stdout.startswith("appended 0 records")
    assert values(data) == []


@pytest.mark.parametrize(
    ("number", "code", "kind"), [(signal.SIGINT, 130, "lines"), (signal.SIGTERM, 143, "csv")]
)
def test_a_pipe_is_appended_as_it_comes_and_an_end_by_signal_loses_nothing(
    program: Run, started: Run, data: Path, number: int, code: int, kind: str
) -> None:
    """What a pipe has delivered is there while it is still open, and after Ctrl-C, quietly."""
    program("create", "t")
    process = started("append", "t", "--format", kind)
    process.stdin.write(b"value\nfirst\n" if kind == "csv" else b"first\n")
    process.stdin.flush()
    wait_until(lambda: values(data) == [b"first"])
    process.stdin.write(b"second\nunfinished")
    process.stdin.flush()
    wait_until(lambda: values(data) == [b"first", b"second"])
    process.send_signal(number)
    assert process.wait(30) == code
    assert process.stdout.read() == b""
    assert process.stderr.read() == b""
    assert values(data) == [b"first", b"second"]


def test_a_second_writer_is_told_who_the_first_one_is(
    program: Run, started: Run, tiered_: Run, data: Path
) -> None:
    program("create", "t")
    process = started("append", "t")
    process.stdin.write(b"first\n")
    process.stdin.flush()
    wait_until(lambda: values(data) == [b"first"])
    assert str(process.pid) in one_error(tiered_("append", "t", stdin="x\n"))
