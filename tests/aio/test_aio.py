"""Coroutines append, read and commit; what is cancelled loses and repeats nothing, and nothing stops the loop."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
import tiered.aio
from tests.support.recorder import Recorder
from tests.support.stores import stepwise, values
from tiered.aio import AsyncConsumer, AsyncStore, AsyncTopic
from tiered.engine.host import Host
from tiered.errors import DiskFull
from tiered.transactions.commits import Commits

Body = Callable[[AsyncStore], Awaitable[None]]


@pytest.fixture(params=["here", "served"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Run a coroutine with a store: opened here, or a client of its server."""

    def run_with(body: Body) -> None:
        async def main() -> None:
            with tiered.open(tmp_path / "data", settings=stepwise(offload="off")) as local:
                if request.param == "here":
                    local.close()
                    async with tiered.aio.open(tmp_path / "data", settings=stepwise(offload="off")) as store:
                        await body(store)
                else:
                    with local.serve("127.0.0.1:0") as server:
                        async with tiered.aio.open(server.location) as store:
                            await body(store)

        asyncio.run(asyncio.wait_for(main(), 60))

    return run_with


async def soon(reached: Callable[[], object]) -> None:
    while not reached():  # noqa: ASYNC110 (of another thread)
        await asyncio.sleep(0.001)


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


def test_appends_of_many_tasks_share_syncs(tmp_path: Path) -> None:
    async def main() -> None:
        async with tiered.aio.open(tmp_path / "data", settings=stepwise({"sync": "always"})) as store:
            topic = await store.create_topic("events", partitions=2)
            await topic.append(b"0", partition=0)
            syncs = store.sync.context.write_counters.syncs  # type: ignore[attr-defined]
            before = sum(syncs.distribution.counts)

            async def work(task: int) -> None:
                for number in range(20):
                    found = await topic.append(b"%d.%d" % (task, number), partition=0)
                    assert topic.sync.opened.writers[0].durable_offset > found.offset  # type: ignore[attr-defined]

            await asyncio.gather(*map(work, range(64)))
            assert 64 * 20 / (sum(syncs.distribution.counts) - before) > 40
            found = values(topic.sync)
            assert sorted(found) == sorted([b"0", *(b"%d.%d" % (t, n) for t in range(64) for n in range(20))])

    asyncio.run(main())


def test_what_an_append_takes_and_raises(run: Any) -> None:
    async def body(store: AsyncStore) -> None:
        topic = await store.create_topic("events", partitions=4)
        found = await topic.append(b"a", key=b"k", headers={"h": b"1"}, timestamp=5, sync=True)
        assert await topic.append(b"b", partition=found.partition, expected_offset=found.offset + 1)
        with pytest.raises(tiered.Conflict):
            await topic.append(b"b", partition=found.partition, expected_offset=found.offset + 1)
        with pytest.raises(tiered.SchemaMismatch):
            await topic.append("text")
        with pytest.raises(tiered.TopicNotFound):
            await topic.append(b"a", partition=4)
        with pytest.raises(tiered.ConfigError):
            await topic.append(b"a", sync="yes")  # type: ignore[arg-type]
        await topic.append_many([b"c"] * 3)
        await topic.append_batch(pa.table({"value": [b"d"]}), sync=True)
        await topic.flush()
        await store.flush()
        assert sorted(values((await store.topic("events")).sync)) == [b"a", b"b", b"c", b"c", b"c", b"d"]
        with pytest.raises(tiered.TopicNotFound):
            await store.topic("absent")
        with pytest.raises(tiered.ReadOnly):
            await (await _log(store)).append({"kind": "x"}, sync=True)

    run(body)


async def _log(store: AsyncStore) -> AsyncTopic:
    async with store.transaction("x"):
        pass
    return await store.topic("__transactions")


def test_a_full_disk_fails_those_that_wait(tmp_path: Path) -> None:
    """The records stay pending, and are durable once there is room."""
    recorder = Recorder(tmp_path)

    def full(name: str) -> None:
        if name == "write":
            raise DiskFull("no room for the test")

    async def main() -> None:
        host = Host(fs=recorder)
        async with tiered.aio.open(tmp_path / "data", settings=stepwise(offload="off"), host=host) as store:
            topic = await store.create_topic("events")
            await topic.append(b"a", sync=True)
            recorder.fault = full
            results = await asyncio.gather(
                *(topic.append(b"b", sync=True) for _ in range(8)), return_exceptions=True
            )
            assert all(isinstance(result, DiskFull) for result in results)
            recorder.fault = None
            await topic.append(b"c", sync=True)
            assert values(topic.sync) == [b"a", *[b"b"] * 8, b"c"]

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_cancelled_appends_are_there_once_or_not(run: Any, seed: int) -> None:
    chance = random.Random(seed)

    async def body(store: AsyncStore) -> None:
        topic = await store.create_topic("events", partitions=2)
        returned: list[int] = []

        async def work(number: int) -> None:
            await topic.append(b"%d" % number, partition=number % 2, sync=True)
            returned.append(number)

        tasks = [asyncio.create_task(work(number)) for number in range(60)]
        for task in chance.sample(tasks, 30):
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await topic.flush()
        found = [int(value) for value in values(topic.sync)]
        assert len(set(found)) == len(found)
        assert set(returned) <= set(found)
        assert len(returned) >= 30

    run(body)


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(3))
def test_cancelled_polls_lose_and_repeat_nothing(run: Any, seed: int) -> None:
    """Also where positions are committed in between, and another session goes on from them."""
    chance = random.Random(seed)

    async def body(store: AsyncStore) -> None:
        topic = await store.create_topic("events", partitions=2)
        got: list[int] = []

        async def produce() -> None:
            for number in range(0, 200, 5):
                for more in range(5):
                    await topic.append(b"%d" % (number + more), partition=chance.randrange(2))
                await topic.flush()
                await asyncio.sleep(0)

        async def consume(consumer: AsyncConsumer) -> None:
            got.extend(numbers(await consumer.poll(None, chance.choice([1, 3, 1000]))))

        producing = asyncio.create_task(produce())
        while len(got) < 200:
            async with topic.consumer("billing") as consumer:
                for _ in range(chance.randrange(1, 20)):
                    task = asyncio.create_task(consume(consumer))
                    if chance.random() < 0.6:
                        for _ in range(chance.randrange(5)):
                            await asyncio.sleep(0)
                    else:
                        await asyncio.sleep(0.002)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    if chance.random() < 0.3:
                        await consumer.commit()
                await consumer.commit()
        await producing
        assert sorted(got) == list(range(200))

    run(body)


def test_a_consumer_iterates_and_seeks(run: Any) -> None:
    async def body(store: AsyncStore) -> None:
        topic = await store.create_topic("events", partitions=2)
        for number in range(6):
            await topic.append(b"%d" % number, partition=number % 2)
        await topic.flush()
        async with topic.consumer("billing") as consumer:
            async for batch in consumer:
                assert numbers([batch]) == [0, 2, 4]
                break
            assert consumer.position() == {0: 3, 1: 0}
            assert await consumer.lag() == {0: 0, 1: 3}
            await consumer.commit()
            assert [item.offset for item in store.sync.consumers()] == [3, 0]
            assert numbers(await consumer.poll(max_records=2)) == [1, 3]
            await consumer.seek({0: 1})
            assert sorted(numbers(await consumer.poll())) == [2, 4, 5]
            assert await consumer.poll(0.01) == []
            with pytest.raises(tiered.OffsetOutOfRange):
                await consumer.seek({0: 9})
            with pytest.raises(tiered.ConfigError):
                await consumer.poll(max_records=0)
            await consumer.commit({0: 2})
            newer = await topic.consumer("billing")
            assert newer.position() == {0: 2, 1: 0}
            with pytest.raises(tiered.Fenced):
                await consumer.commit()
            newer.close()

    run(body)


def test_a_transaction_takes_what_was_returned(run: Any) -> None:
    async def body(store: AsyncStore) -> None:
        topic = await store.create_topic("events")
        await store.create_topic("sums", schema=pa.schema([("n", pa.int64())]))
        await topic.append_many([b"1", b"2", b"3"])
        await topic.flush()
        async with topic.consumer("billing") as consumer:
            first = numbers(await consumer.poll(max_records=2))
            async with store.transaction("etl") as transaction:
                await transaction.append("sums", {"n": sum(first)})
                await transaction.append_many("sums", [{"n": 0}])
                await transaction.append_batch("sums", pa.table({"n": [9]}))
                await transaction.append(topic, b"4")
                transaction.commit_position(consumer)
            assert transaction.ranges == {
                "sums": [tiered.OffsetRange(0, 0, 3)], "events": [tiered.OffsetRange(0, 3, 4)],
            }  # fmt: skip
            assert [item.offset for item in store.sync.consumers()] == [2]
            with pytest.raises(ZeroDivisionError):
                async with store.transaction("etl") as transaction:
                    await transaction.append("sums", {"n": 5})
                    raise ZeroDivisionError
            assert numbers(await consumer.poll()) == [3]
        assert store.sync.topic("sums").scan(columns=["n"]).to_arrow()["n"].to_pylist() == [3, 0, 9]

    run(body)


def test_what_a_poll_of_an_ended_loop_had_read_is_returned_in_the_next_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that read is not of the loop, and ends after it."""
    reading, go_on = threading.Event(), threading.Event()

    async def cancelled() -> tuple[AsyncStore, AsyncConsumer]:
        store = await tiered.aio.open(tmp_path / "data", settings=stepwise(offload="off"))
        topic = await store.create_topic("events")
        await topic.append_many([b"%d" % i for i in range(5)])
        await topic.flush()
        consumer = await topic.consumer("billing")
        poll = consumer.sync.poll

        def late(*arguments: Any) -> list[pa.RecordBatch]:
            batches = poll(*arguments)
            reading.set()
            go_on.wait()
            return batches

        with monkeypatch.context() as patched:
            patched.setattr(consumer.sync, "poll", late)
            task = asyncio.create_task(consumer.poll())
            await soon(reading.is_set)
            task.cancel()
            await asyncio.wait([task])
        return store, consumer

    async def again(store: AsyncStore, consumer: AsyncConsumer) -> None:
        task = asyncio.create_task(consumer.poll())
        await asyncio.sleep(0)
        go_on.set()
        assert numbers(await task) == list(range(5))
        await consumer.commit()
        assert consumer.sync.committed() == {0: 5}
        await store.close()

    asyncio.run(again(*asyncio.run(cancelled())))


def rounds_of(consumer: AsyncConsumer) -> Callable[[], Awaitable[list[int]]]:
    """Two polls that take turns; together they return what there is."""

    async def rounds() -> list[int]:
        return [
            number
            for part in await asyncio.gather(consumer.poll(0), consumer.poll(0))
            for number in numbers(part)
        ]

    return rounds


def a_consumer(root: Path, rows: int) -> Callable[[], Awaitable[tuple[AsyncStore, AsyncConsumer]]]:
    async def begin() -> tuple[AsyncStore, AsyncConsumer]:
        store = await tiered.aio.open(root / "data", settings=stepwise(offload="off"))
        topic = await store.create_topic("events")
        await topic.append_many([b"%d" % i for i in range(rows)])
        await topic.flush()
        return store, await topic.consumer("billing")

    return begin


def test_calls_take_turns_in_each_of_successive_loops(tmp_path: Path) -> None:
    store, consumer = asyncio.run(a_consumer(tmp_path, 3)())
    assert asyncio.run(rounds_of(consumer)()) == [0, 1, 2]
    store.sync.topic("events").append(b"3", sync=True)
    assert asyncio.run(rounds_of(consumer)()) == [3]
    asyncio.run(store.close())


def test_a_loop_that_is_not_closed_keeps_its_consumer(tmp_path: Path) -> None:
    """Its tasks would go on where they stood."""
    with asyncio.Runner() as runner:
        store, consumer = runner.run(a_consumer(tmp_path, 3)())
        assert runner.run(consumer.poll(0, 1))
        for call in (lambda: consumer.poll(0), lambda: consumer.seek("earliest")):
            with pytest.raises(
                tiered.ConfigError, match="belongs to another event loop until that is closed"
            ):
                asyncio.run(call())
        assert numbers(runner.run(consumer.poll(0))) == [1, 2]
    asyncio.run(consumer.seek("earliest"))
    assert asyncio.run(rounds_of(consumer)()) == [0, 1, 2]
    asyncio.run(store.close())


def test_a_loop_that_is_closed_amid_a_poll_loses_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody cancels its tasks: they end with their objects, while the next loop goes on."""
    store, consumer = asyncio.run(a_consumer(tmp_path, 3)())
    poll, go_on = consumer.sync.poll, threading.Event()

    def late(*arguments: Any) -> list[pa.RecordBatch]:
        batches = poll(*arguments)
        go_on.wait()
        return batches

    async def begun() -> asyncio.Task[Any]:
        task = asyncio.create_task(consumer.poll())
        await soon(lambda: consumer._reading)
        return task

    with monkeypatch.context() as patched:
        patched.setattr(consumer.sync, "poll", late)
        loop = asyncio.new_event_loop()
        task = loop.run_until_complete(begun())
        loop.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        del task
        gc.collect()
        go_on.set()
    assert asyncio.run(rounds_of(consumer)()) == [0, 1, 2]
    asyncio.run(store.close())


def test_a_position_moves_over_records_that_are_gone(run: Any) -> None:
    """Else the next session is behind records that nobody can read."""

    async def body(store: AsyncStore) -> None:
        topic = await store.create_topic("events", partitions=2)
        await topic.append_many([{"value": b"%d" % i, "partition": i % 2} for i in range(8)])
        await topic.flush()
        async with topic.consumer("billing", on_rewind="latest") as consumer:
            topic.sync.delete_before(4, 0)
            assert sorted(numbers(await consumer.poll(0))) == [1, 3, 5, 7]
            assert consumer.position() == {0: 4, 1: 4}
            assert await consumer.lag() == {0: 0, 1: 0}
            await consumer.commit()
            assert consumer.sync.committed() == {0: 4, 1: 4}

    run(body)


def test_a_commit_that_is_cancelled_is_whole(run: Any) -> None:
    async def body(store: AsyncStore) -> None:
        topic = await store.create_topic("events", partitions=2)
        for steps in range(12):

            async def transact() -> None:
                async with store.transaction() as transaction:
                    for partition in range(2):
                        await transaction.append("events", b"%d" % steps, partition=partition)  # noqa: B023

            task = asyncio.create_task(transact())
            for _ in range(steps):
                await asyncio.sleep(0.0005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for number in set(values(topic.sync)):
            assert values(topic.sync).count(number) == 2

    run(body)


def test_a_cancelled_commit_has_ended_with_its_task(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, release = threading.Event(), threading.Event()
    commit = Commits.commit

    def slow(*arguments: Any) -> Any:
        begun.set()
        release.wait(10)
        return commit(*arguments)

    monkeypatch.setattr(Commits, "commit", slow)

    async def body(store: AsyncStore) -> None:
        topic = await store.create_topic("events")

        async def transact() -> None:
            async with store.transaction() as transaction:
                await transaction.append("events", b"a")

        task = asyncio.create_task(transact())
        await soon(begun.is_set)
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert values(topic.sync) == [b"a"]

    run(body)


def test_closing_ends_what_waits(run: Any) -> None:
    async def body(store: AsyncStore) -> None:
        topic = await store.create_topic("events")
        consumer, other = await topic.consumer("billing"), await topic.consumer("audit")
        polls = [asyncio.create_task(each.poll(None)) for each in (consumer, other)]
        for _ in range(20):
            await asyncio.sleep(0.001)
        consumer.close()
        with pytest.raises(tiered.StoreClosed):
            await polls[0]
        await store.close()
        with pytest.raises(tiered.StoreClosed):
            await polls[1]
        for call in (topic.append(b"a"), topic.append(b"a", sync=True), topic.flush(), store.topic("events")):
            with pytest.raises(tiered.StoreClosed):
                await call

    run(body)


def test_appends_do_not_stop_the_loop(tmp_path: Path) -> None:
    """While a transaction, or a roll, holds the partition, and while a block is written."""

    async def main() -> None:
        async with tiered.aio.open(tmp_path / "data", settings=stepwise(offload="off")) as store:
            topic = await store.create_topic("events")
            await topic.append(b"a")
            writer, release, held = topic.sync.opened.writers[0], threading.Event(), threading.Event()  # type: ignore[attr-defined]

            def hold() -> None:
                with writer.held():
                    held.set()
                    release.wait(5)

            thread = threading.Thread(target=hold)
            thread.start()
            await soon(held.is_set)
            append = asyncio.create_task(topic.append(b"b", sync=True))
            for _ in range(5):
                await asyncio.sleep(0.001)
            assert not append.done()
            release.set()
            assert (await append).offset == 1
            thread.join()

    asyncio.run(asyncio.wait_for(main(), 4))


def test_several_loops_use_a_store(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "data"):
        pass
    opened: list[AsyncStore] = []

    async def begin() -> None:
        opened.append(await tiered.aio.open(tmp_path / "data", settings=stepwise(offload="off")))
        await opened[0].create_topic("events")

    async def work() -> None:
        topic = await opened[0].topic("events")
        await asyncio.gather(*(topic.append(b"x", sync=True) for _ in range(50)))

    asyncio.run(begin())
    threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(values(opened[0].sync.topic("events"))) == 150
    asyncio.run(opened[0].close())


def test_an_opening_that_is_cancelled_leaves_no_open_store(tmp_path: Path) -> None:
    async def main() -> None:
        for steps in range(8):
            opening = asyncio.ensure_future(tiered.aio.open(tmp_path / "data"))
            for _ in range(steps):
                await asyncio.sleep(0.002)
            opening.cancel()
            (found,) = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(found, AsyncStore):
                await found.close()
            with tiered.open(tmp_path / "data"):
                pass

    asyncio.run(main())
