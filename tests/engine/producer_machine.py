"""A state machine: producers, sinks and plain appends, against a model, through every move, crash and restore.

The model is where each numbered record lies. A client repeats, after a loss, everything from the first number
that it was not promised; then every number is in the log exactly once, and in order.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import tiered
from tests.support.clock import Clock
from tests.support.disks import WithoutSyncs
from tests.support.partition_writers import rows_of
from tests.support.stores import COMPRESS_US, EVICT_US, OFFLOAD_US, stepwise, tier
from tiered.engine.append_numbered import append_idempotent, append_rows
from tiered.engine.host import Host
from tiered.format.producers import RUNS_MAX, UNKNOWN_OFFSET
from tiered.store.interface.producer import Producer

TAIL_US = 20_000_000
SETTINGS = stepwise({"block_bytes": 700, "hot_bytes": 3000}, offload={"after": "4h", "tail_interval": "10s"})
KEYS = (None, b"a", b"b", b"c", b"\xff")

clients = st.integers(0, 1)
partitions = st.integers(0, 2)
shares = st.floats(0, 1)


@dataclass
class Client:
    """A source of records: what it sent by number, and how much of it is promised."""

    name: str
    session: Producer | None = None
    sent: list[tuple[bytes | None, int | None]] = field(default_factory=list)
    recent: list[int] = field(default_factory=list)
    flushed: int = 0
    published: int = 0

    def value(self, number: int) -> bytes:
        return f"{self.name}:{number}".encode()


class ProducerMachine(RuleBasedStateMachine):
    """See the module; `where` has each numbered record that the log holds, deleted ones too."""

    @initialize(count=st.integers(1, 3))
    def begin(self, count: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="producers-"))
        self.cold = f"file://{self.folder}/bucket"
        self.clock = Clock()
        self.lives = 0
        self.count = count
        self.ends = [0] * count
        self.starts = [0] * count
        self.where: dict[bytes, tuple[int, int]] = {}
        self.clients = [Client("a"), Client("b")]
        self.calls: list[tuple[int, int, int, str]] = []
        self.calls_flushed = self.calls_published = 0
        self.path = self.folder / "0"
        self.store = self.open()
        self.topic = self.store.create_topic("log", partitions=count)
        self.begin_sessions()

    def open(self) -> tiered.Store:
        host = Host(clock=self.clock, fs=WithoutSyncs())
        return tiered.open(self.path, cold=self.cold, settings=SETTINGS, host=host)

    def begin_sessions(self, *, same_disk: bool = True) -> None:
        for client in self.clients:
            old, client.session = client.session, self.topic.producer(client.name)
            client.recent.clear()
            prefix = client.value(0)[:-1]
            there = [int(value[len(prefix) :]) for value in self.where if value.startswith(prefix)]
            assert client.session.next_sequence == max(there, default=-1) + 1
            if old is not None and same_disk:
                assert client.session.epoch > old.epoch

    def teardown(self) -> None:
        if hasattr(self, "store"):
            try:
                self.compare()
                assert self.store.verify(deep=True).problems == ()
            finally:
                self.store.close()
                shutil.rmtree(self.folder)

    # -- appending ---------------------------------------------------------------------------------

    def send(self, client: Client, number: int) -> None:
        """Append a number, new or not, as the model says it goes."""
        assert client.session is not None
        key, partition = client.sent[number]
        value = client.value(number)
        found = client.session.append(value, sequence=number, key=key, partition=partition)
        known = self.where.get(value)
        if known is None:
            assert found.offset == self.ends[found.partition]
            self.ends[found.partition] += 1
            self.where[value] = tuple(found)
            client.recent = [*client.recent[1 - RUNS_MAX :], number]
        elif number in client.recent:
            assert found == known
        else:
            assert found in (known, (known[0], UNKNOWN_OFFSET))

    @rule(index=clients, key=st.sampled_from(KEYS), partition=st.none() | partitions, times=st.integers(1, 4))
    def append(self, index: int, key: bytes | None, partition: int | None, times: int) -> None:
        client = self.clients[index]
        for _ in range(times):
            client.sent.append((key, None if partition is None else partition % self.count))
            self.send(client, len(client.sent) - 1)

    @rule(index=clients, share=shares)
    def repeat(self, index: int, share: float) -> None:
        """Anything ever sent is known, wherever it is by now, and whether or not it was deleted."""
        client = self.clients[index]
        if client.sent:
            self.send(client, round(share * (len(client.sent) - 1)))

    @rule(index=clients, skipped=st.integers(1, 3))
    def skip(self, index: int, skipped: int) -> None:
        client = self.clients[index]
        assert client.session is not None
        if client.sent:
            with pytest.raises(tiered.OutOfOrderSequence):
                client.session.append(b"never", sequence=len(client.sent) + skipped)

    @rule(
        index=clients, rows=st.lists(st.sampled_from(KEYS), min_size=1, max_size=12), back=st.integers(0, 5)
    )
    def append_batch(self, index: int, rows: list[bytes | None], back: int) -> None:
        """A batch that begins with up to `back` numbers that are there already."""
        client = self.clients[index]
        assert client.session is not None
        begin = len(client.sent)
        while begin and back and client.sent[begin - 1][1] is None:
            begin, back = begin - 1, back - 1
        repeated = len(client.sent) - begin
        client.sent += [(key, None) for key in rows]
        table = pa.table(
            {
                "key": pa.array([key for key, _ in client.sent[begin:]], pa.binary()),
                "value": pa.array([client.value(n) for n in range(begin, len(client.sent))], pa.binary()),
            }
        )
        found = client.session.append_batch(table, sequence=begin)
        self.find_new(client, begin + repeated)
        if not repeated:
            assert sum(end - start for _, start, end in found) == len(rows)
            assert client.session.append_batch(table, sequence=begin) == found

    @rule(
        partition=partitions,
        jump=st.integers(0, 1 << 40),
        rows=st.integers(1, 8),
        way=st.sampled_from(("batch", "rows", "synced rows")),
    )
    def sink(self, partition: int, jump: int, rows: int, way: str) -> None:
        partition %= self.count
        last = max((base + count for place, base, count, _ in self.calls if place == partition), default=0)
        self.calls.append((partition, last + jump % (1 << 33), rows, way))
        self.call(len(self.calls) - 1)

    @rule(share=shares)
    def sink_again(self, share: float) -> None:
        if self.calls:
            self.call(round(share * (len(self.calls) - 1)))

    def call(self, index: int) -> None:
        partition, base, rows, way = self.calls[index]
        values = [b"sink/%d:%d" % (partition, base + i) for i in range(rows)]
        known = [self.where.get(value) for value in values]
        if way == "batch":
            data = pa.table({"value": pa.array(values, pa.binary())})
            found = append_idempotent(self.topic.opened, data, partition, "sink", 3, base)
        else:
            found = append_rows(
                self.topic.opened, rows_of(*values), partition, "sink", 3, base, sync=way == "synced rows"
            )
        missing = [value for value, place in zip(values, known, strict=True) if place is None]
        assert known == sorted(known, key=lambda place: place is None), "the durable rows are the first ones"
        for value in missing:
            self.where[value] = (partition, self.ends[partition])
            self.ends[partition] += 1
        first, last = self.where[values[0]][1], self.where[values[-1]][1]
        assert found.partition == partition
        assert found.start in (first, UNKNOWN_OFFSET)
        assert found.end in (last + 1, UNKNOWN_OFFSET)
        if len(missing) == rows:
            assert found == (partition, first, last + 1)

    @rule(partition=partitions, count=st.integers(1, 3))
    def append_without_numbers(self, partition: int, count: int) -> None:
        for _ in range(count):
            self.topic.append(b"plain", partition=partition % self.count)
            self.ends[partition % self.count] += 1

    @rule(index=clients)
    def another_session(self, index: int) -> None:
        """The older one is fenced, in every partition."""
        client = self.clients[index]
        old, client.session = client.session, self.topic.producer(client.name)
        assert old is not None
        assert client.session.next_sequence == len(client.sent)
        for partition in range(self.count):
            with pytest.raises(tiered.Fenced):
                old.append(b"never", partition=partition)

    # -- moving ------------------------------------------------------------------------------------

    @rule()
    def flush(self) -> None:
        self.topic.flush()
        for client in self.clients:
            client.flushed = len(client.sent)
        self.calls_flushed = len(self.calls)

    @rule(reopened=st.booleans())
    def roll(self, reopened: bool) -> None:
        self.topic.roll()
        if reopened:
            self.reopen()

    @rule()
    def compress(self) -> None:
        tier(self.store, self.clock, COMPRESS_US)

    @rule(ahead_us=st.sampled_from((TAIL_US, OFFLOAD_US)))
    def publish(self, ahead_us: int) -> None:
        """As tails, or as whole segments; two passes, as the first may only seal."""
        self.flush()
        tier(self.store, self.clock, ahead_us)
        tier(self.store, self.clock, ahead_us)
        for client in self.clients:
            client.published = client.flushed
        self.calls_published = self.calls_flushed

    @rule()
    def evict(self) -> None:
        tier(self.store, self.clock, EVICT_US)

    @rule(seconds=st.integers(1, 20_000))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(partition=partitions, share=shares)
    def delete_before(self, partition: int, share: float) -> None:
        partition %= self.count
        start = self.starts[partition]
        # The last record stays: a restore knows the producers from the newest object.
        offset = start + round(share * max(0, self.ends[partition] - 1 - start))
        self.topic.delete_before(offset, partition)
        self.starts[partition] = offset

    # -- losing ------------------------------------------------------------------------------------

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.lose(self.path, [0] * self.count, lost=False)

    @rule(share=shares)
    def crash(self, share: float) -> None:
        """A power cut: of what was not synced, the file's first part is left."""
        durable = [0] * self.count
        self.lives += 1
        path = self.folder / str(self.lives)
        # The cache is written to meanwhile, and never needed.
        shutil.copytree(self.path, path, ignore=shutil.ignore_patterns("cache"))
        for partition, writer in self.topic.opened.writers.items():
            durable[partition] = writer.durable_offset
            segment = writer.active.segment
            with (path / segment.path.relative_to(self.path)).open("r+b") as file:
                file.truncate(
                    segment.synced_through + round(share * (segment.position - segment.synced_through))
                )
        self.store.close()
        shutil.rmtree(self.path)
        self.lose(path, durable)
        for client in self.clients:
            for number in range(client.flushed, len(client.sent)):
                self.send(client, number)
        for index in range(self.calls_flushed, len(self.calls)):
            self.call(index)

    @rule(ahead_us=st.sampled_from((None, TAIL_US, OFFLOAD_US)), more=st.integers(0, 2))
    def restore(self, ahead_us: int | None, more: int) -> None:
        """From the bucket alone: what was published is known there, and nothing else."""
        if ahead_us is not None:
            self.publish(ahead_us)
            self.append(0, b"a", None, more)
        if not (self.folder / "bucket" / "store.json").exists():
            return
        self.store.close()
        self.lives += 1
        path = self.folder / str(self.lives)
        host = Host(clock=self.clock, fs=WithoutSyncs())
        tiered.restore(self.cold, path, settings=SETTINGS, host=host).close()
        self.lose(path, [0] * self.count, restored=True)
        for client in self.clients:
            client.flushed = min(client.flushed, client.published)
            for number in range(client.published, len(client.sent)):
                self.send(client, number)
        self.calls_flushed = min(self.calls_flushed, self.calls_published)
        for index in range(self.calls_published, len(self.calls)):
            self.call(index)

    def lose(self, path: Path, at_least: list[int], *, lost: bool = True, restored: bool = False) -> None:
        """Open what is left; the model forgets what is not."""
        self.path = path
        self.store = self.open()
        self.topic = self.store.topic("log")
        found = self.topic.offsets()
        for partition in range(self.count):
            _, start, end = found[partition]
            assert at_least[partition] <= end <= self.ends[partition]
            assert lost or end == self.ends[partition]
            self.starts[partition], self.ends[partition] = start, end
        self.where = {value: place for value, place in self.where.items() if place[1] < self.ends[place[0]]}
        # An epoch that began since the last upload is known to the lost disk alone.
        self.begin_sessions(same_disk=not restored)

    # -- reading -----------------------------------------------------------------------------------

    def find_new(self, client: Client, first: int) -> None:
        """Learn from the log where the numbers from `first` on went, and that they went to its end."""
        values = {client.value(number) for number in range(first, len(client.sent))}
        for value, partition, offset in self.rows(self.ends):
            if value in values:
                assert offset >= self.ends[partition]
                self.where[value] = (partition, offset)
        assert values <= self.where.keys()
        for partition, (_, _, end) in self.topic.offsets().items():
            self.ends[partition] = end

    def rows(self, starts: list[int]) -> Iterator[tuple[bytes, int, int]]:
        for partition, start in enumerate(starts):
            table = self.topic.scan(partition, start_offset=start).to_arrow()
            for value, offset in zip(table["value"].to_pylist(), table["offset"].to_pylist(), strict=True):
                yield value, partition, offset

    @rule()
    def compare(self) -> None:
        """Every number that was sent is there once, in order, where its append said."""
        found: dict[bytes, tuple[int, int]] = {}
        last: dict[tuple[int, bytes], int] = {}
        for value, partition, offset in self.rows(self.starts):
            if value == b"plain":
                continue
            assert value not in found, f"{value!r} is there twice"
            found[value] = (partition, offset)
            name, _, number = value.partition(b":")
            assert last.get((partition, name), -1) < int(number)
            last[partition, name] = int(number)
        assert found == {
            value: place for value, place in self.where.items() if place[1] >= self.starts[place[0]]
        }
        assert {
            client.value(i) for client in self.clients for i in range(len(client.sent))
        } <= self.where.keys()
