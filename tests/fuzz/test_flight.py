"""No bytes of a client end a server or get lost in it: Arrow messages, spoilt on their way to one in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.flight as fl
import pytest

import tiered
from tests.fuzz.mutations import mutate
from tests.fuzz.spoilt_wire import SpoiltWire
from tests.support.budget import rounds, seconds_of
from tests.support.invalid_arrow import (
    LONG,
    NULL_VIEWS,
    indices_with,
    views_with,
)
from tests.support.paths import ROOT
from tests.support.tally import tally
from tiered.flight.wire.errors import decode_error
from tiered.flight.wire.put_messages import PutCommand
from tiered.format.schema import normalize_schema

STREAMS = 250
BATCHES = 3
_ANSWER_SECONDS = 60.0
TYPED = {"taken", "SchemaMismatch", "RecordTooLarge", "Backpressure"}
BY_ARROW = ("FlightServerError: ", "ArrowInvalid: ", "ArrowNotImplementedError: ", "ArrowTypeError: ")

# It has some 2 GiB: what claims to be larger than that is refused, and not made.
SERVER = """
import resource, sys, tiered
store = tiered.open(sys.argv[1])
server = store.serve("127.0.0.1:0")
print(server.location, flush=True)
with open("/proc/self/statm") as file:
    limit = int(file.read().split()[0]) * resource.getpagesize() + (2 << 30)
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
sys.stdin.read()
store.close()
"""

WORDS = ["a", None, "", "longer than what fits into a view", "another of these longer ones", "ü"]
ROWS = len(WORDS)
ENTRIES = [[("k", 1), ("l", None)], None, [], [("m", 2)], [], []]
LISTS = [[1, None], None, [], [3], [4, 5], [6]]
NESTED = [{"a": "x", "b": [1]}, None, {"a": None, "b": None}, {"a": "y", "b": []}, {}, {}]
COLUMNS: dict[str, pa.Array] = {
    "long": pa.array(range(ROWS), pa.int64()),
    "flag": pa.array([True, None, False, True, None, False]),
    "price": pa.array([1, None, 3, 4, 5, 6], pa.decimal128(9, 2)),
    "when": pa.array([10**9, None, 0, 1, 2, 3], pa.timestamp("us", "UTC")),
    "text": pa.array(WORDS),
    "large": pa.array(WORDS, pa.large_string()),
    "view": pa.array([None, None, *WORDS[2:5], None], pa.string_view()),
    "bytes": pa.array([None, b"longer than what fits into a view", None, None, b"a", None], pa.binary_view()),
    "fixed": pa.array([b"1234"] * ROWS, pa.binary(4)),
    "word": pa.array(WORDS).dictionary_encode(),
    "seen": pa.DictionaryArray.from_arrays(
        pa.array([0, None, 2, 3, 3, 0], pa.int16()), pa.array(WORDS, pa.string_view())
    ),
    "list": pa.array(LISTS, pa.list_(pa.int32())),
    "pair": pa.array([[1, 2], None, [3, None], [4, 5], [6, 7], [8, 9]], pa.list_(pa.int16(), 2)),
    "map": pa.array(ENTRIES, pa.map_(pa.string(), pa.int64())),
    "struct": pa.array(NESTED, pa.struct([("a", pa.string()), ("b", pa.list_(pa.int64()))])),
}
# Refused, but read by Arrow before that.
REFUSED: dict[str, pa.Array] = {
    "spread": pa.array(LISTS, pa.list_view(pa.int32())),
    "runs": pa.RunEndEncodedArray.from_arrays([2, ROWS], pa.array(["x", "y"])),
    "inner": pa.array([[word] for word in WORDS], pa.list_(pa.string_view())),
}
SEEDS = {
    **{name: pa.record_batch({name: array}) for name, array in {**COLUMNS, **REFUSED}.items()},
    "all": pa.record_batch(COLUMNS),
}


class Server:
    """A server in a process of its own, with a topic of each of `SEEDS`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with tiered.open(folder) as store:
            for name, batch in SEEDS.items():
                store.create_topic(name, schema=normalize_schema(batch.schema))
        command = [sys.executable, "-c", SERVER, str(folder)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self.process.stdout is not None
        self.location = self.process.stdout.readline().strip()

    def check_alive(self, seen: str) -> None:
        code = self.process.poll()
        if code is not None:
            assert self.process.stderr is not None
            pytest.fail(f"the server ended by {code}: {seen}: {self.process.stderr.read()[-2000:]}")

    def end(self) -> None:
        """End it in order; what it took must be sound, and all of it in the log."""
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors[-2000:]
        with tiered.open(self.folder, read_only=True) as store:
            for name in SEEDS:
                for batch in store.topic(name).scan().to_batches():
                    batch.validate(full=True)
            report = store.verify()
            assert report.ok, report


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


def send(client: fl.FlightClient, name: str, batch: pa.RecordBatch, dice: Random) -> list[str]:
    """Append or stage batches by one stream; return how each was answered: "taken", or the error's name."""
    attempt = {"query": "q", "attempt": f"{dice.getrandbits(128):032x}"}
    staged = dice.random() < 0.2
    command = PutCommand(name, kind="stage", options=attempt) if staged else PutCommand(name)
    to = fl.FlightDescriptor.for_command(command.encode())
    written = pa.ipc.IpcWriteOptions(
        emit_dictionary_deltas=True, compression=dice.choice((None, None, "lz4", "zstd"))
    )
    options = fl.FlightCallOptions(timeout=_ANSWER_SECONDS, write_options=written)
    answers: list[str] = []
    try:
        writer, reader = client.do_put(to, batch.schema, options)
        with writer:
            for left in reversed(range(BATCHES)):
                writer.write_batch(batch)
                if staged and left:
                    continue
                if staged:
                    writer.done_writing()
                data = reader.read()
                if data is None:
                    break  # the end of the stream says why
                answer = json.loads(data.to_pybytes())
                answers.append(answer["error"]["error"] if "error" in answer else "taken")
    except (pa.ArrowException, OSError) as error:
        info = getattr(error, "extra_info", None)
        known = decode_error(bytes(info)) if info else None
        answers.append(type(known).__name__ if known else f"{type(error).__name__}: {error}")
    return answers


def run_streams(folder: Path, seed: int, streams: int) -> None:
    """Spoil so many streams; the server lives, answers each by name, and holds nothing unsound."""
    with serving(folder) as server:
        address = server.location.removeprefix("grpc://").rsplit(":", 1)
        with (
            SpoiltWire((address[0], int(address[1]))) as wire,
            fl.connect(f"grpc://127.0.0.1:{wire.port}") as client,
        ):
            found: Counter[str] = Counter()
            for number in range(seed, seed + streams):
                dice = Random(number)
                wire.use(partial(spoilt, dice))
                name = dice.choice(list(SEEDS))
                answers = send(client, name, SEEDS[name], dice)
                server.check_alive(f"stream {number} of {name}")
                found.update(answers)
        server.end()
    unknown = found.keys() - TYPED
    # Schemas and messages that Arrow does not take for any end before our code is called.
    assert not [item for item in unknown if not item.startswith(BY_ARROW)], unknown
    # Most of what was sent got as far as our checks, and some of it through.
    assert found["SchemaMismatch"] + found["taken"] > sum(found.values()) / 2
    assert found["taken"] > sum(found.values()) / 20
    tally("fuzz", flight=streams)


def spoilt(dice: Random, part: bytes, is_body: bool) -> bytes:
    """Edit a message of Arrow, bodies more often than metadata, which Arrow mostly refuses then."""
    if dice.random() > (0.8 if is_body else 0.15):
        return part
    return mutate(part, dice)[: len(part)].ljust(len(part), b"\0")


@pytest.mark.extended
def test_spoilt_batches(tmp_path: Path) -> None:
    """The same ones at every run."""
    run_streams(tmp_path / "store", 0, STREAMS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_spoilt_batches(tmp_path: Path) -> None:
    """The same for minutes, with others at every run."""
    for dice in rounds(seconds_of(0.05)):
        seed = dice.randrange(1, 1 << 32)
        run_streams(tmp_path / str(seed), seed, 20 * STREAMS)


@pytest.mark.extended
def test_null_rows_may_hold_anything(tmp_path: Path) -> None:
    """What the format leaves undefined is taken, whatever it is; it ended the server by a segmentation fault."""
    honest = {
        "view": [views_with(held, pa.string_view()) for held in NULL_VIEWS.values()],
        "bytes": [views_with(held, pa.binary_view()) for held in NULL_VIEWS.values()],
        "word": [indices_with(1 << 30), indices_with(-1)],
    }
    with serving(tmp_path / "store") as server, fl.connect(server.location) as client:
        for name, arrays in honest.items():
            for array in arrays:
                batch = pa.record_batch({name: array})
                assert send(client, name, batch, Random(0)) == ["taken"] * BATCHES
                server.check_alive(name)
        server.end()
    with tiered.open(tmp_path / "store", read_only=True) as store:
        rows = store.topic("view").scan(columns=["view"]).to_arrow()["view"].to_pylist()
    assert rows == ["a", None, LONG.decode()] * BATCHES * len(NULL_VIEWS)
