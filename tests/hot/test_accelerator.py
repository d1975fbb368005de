"""The accelerated append does what the Python method does; without the extension all but the first tests are skipped."""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiered
from tests.support.clock import Clock
from tiered.engine.host import Host
from tiered.hot.accelerator import accelerator

needs_extension = pytest.mark.skipif(
    accelerator is None, reason="the extension is not installed: `make test-fast` builds it"
)
SETTINGS = tiered.Settings.model_validate(
    {"store": {"sync_interval": "1h", "block_bytes": "2KiB"}, "policies": {"default": {"offload": "off"}}}
)


def opened(path: Path, clock: Any) -> tiered.Store:
    return tiered.open(path, settings=SETTINGS, host=Host(clock=clock))


def child(code: str, folder: Path, **environment: str) -> str:
    """Run a program, with a stand-in for the extension in `folder` where there is one."""
    path = os.pathsep.join([str(folder), str(Path(tiered.__file__).parent.parent)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


WHICH = "from tiered.hot.accelerator import accelerator; print(accelerator)"


@pytest.mark.extended
def test_another_interface_is_not_used_and_said_once(tmp_path: Path) -> None:
    (tmp_path / "tiered_accelerator.py").write_text("INTERFACE = 99\n")
    assert child(WHICH, tmp_path).count("interface 99") == 1
    assert "None" in child(WHICH, tmp_path)


def test_the_environment_leaves_the_extension_out(tmp_path: Path) -> None:
    (tmp_path / "tiered_accelerator.py").write_text("raise SystemExit('loaded')\n")
    assert child(WHICH, tmp_path, TIERED_ACCELERATOR="off").strip() == "None"


def test_the_signature_is_that_of_the_interface(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path, clock) as store:
        found = inspect.signature(store.create_topic("t").append).parameters
        wanted = dict(inspect.signature(tiered.Topic.append).parameters)
        del wanted["self"]
        assert [(p.name, p.kind, p.default) for p in found.values()] == [
            (p.name, p.kind, p.default) for p in wanted.values()
        ]


@needs_extension
@given(st.binary(max_size=300))
def test_the_checksum_of_a_key_is_that_of_zlib(key: bytes) -> None:
    assert accelerator is not None
    assert accelerator.crc32(key) == zlib.crc32(key)


class OfBytes(bytes):
    """Bytes of a subclass, which the Python method takes."""


VALUES = (
    st.none()
    | st.binary(max_size=40)
    | st.just("text")
    | st.builds(OfBytes, st.binary(max_size=3))
    | st.just(7)
)
KEYS = st.none() | st.binary(max_size=3) | st.just("k") | st.just(5) | st.builds(OfBytes, st.just(b"o"))
CALLS = st.lists(
    st.tuples(
        VALUES,
        st.fixed_dictionaries(
            {},
            optional={
                "key": KEYS,
                "headers": st.none() | st.just({"h": b"1"}),
                "timestamp": st.none() | st.integers(0, 10),
                "partition": st.none() | st.integers(-1, 3),
                "sync": st.none() | st.booleans(),
                "expected_offset": st.none() | st.integers(-1, 30),
                "other": st.just(1),
            },
        ),
    ),
    max_size=80,
)


@needs_extension
@settings(max_examples=60)
@given(calls=CALLS, partitions=st.integers(1, 3))
def test_every_call_does_what_the_python_method_does(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[Any, dict[str, Any]]], partitions: int
) -> None:
    """The same answers and errors, the same rows at the same times, through full blocks and in every partition."""
    path = tmp_path_factory.mktemp("stores")
    found = []
    for name in ("fast", "slow"):
        ticks = iter(range(1_000_000, 10_000_000))
        with opened(path / name, lambda ticks=ticks: next(ticks)) as store:
            topic: Any = store.create_topic("t", partitions=partitions)
            append = topic.append if name == "fast" else topic._append
            answers = []
            for value, arguments in calls:
                try:
                    answers.append(append(value, **arguments))
                except (tiered.TieredError, TypeError) as error:
                    answers.append((type(error), "" if type(error) is TypeError else str(error)))
            rows = topic.scan().to_arrow().drop_columns(["timestamp"]).to_pylist()
            found.append((answers, rows))
    assert found[0] == found[1]
    assert all(type(answer) in (tuple, tiered.Appended) for answer in found[0][0])


@needs_extension
def test_the_clock_of_the_host_is_asked(tmp_path: Path) -> None:
    with opened(tmp_path, lambda: 123_456_789) as store:
        topic = store.create_topic("t")
        topic.append(b"1")
        assert topic.scan().to_arrow()["timestamp"].to_pylist()[0].timestamp() == 123.456789
        store.close()
    with tiered.open(tmp_path / "other") as store:
        topic = store.create_topic("t")
        assert topic.plain_clock is None
        topic.append(b"1")


@needs_extension
def test_threads_lose_nothing_and_keep_their_order(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path, clock) as store:
        topic = store.create_topic("t")
        answers: dict[int, list[int]] = {}

        def go(me: int) -> None:
            answers[me] = [topic.append(b"%d-%d" % (me, i)).offset for i in range(3000)]

        threads = [threading.Thread(target=go, args=(me,)) for me in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        values = topic.scan().to_arrow()["value"].to_pylist()
    assert len(values) == 18_000
    for me, offsets in answers.items():
        assert offsets == sorted(offsets)
        assert [values[offset] for offset in offsets] == [b"%d-%d" % (me, i) for i in range(3000)]


@needs_extension
def test_a_finalizer_that_appends_meets_no_lock(tmp_path: Path, clock: Clock) -> None:
    """The collector runs where the answer is allocated: before the lock is taken."""

    class Appends:
        def __init__(self, topic: tiered.Topic) -> None:
            self.me, self.topic = self, topic

        def __del__(self) -> None:
            self.topic.append(b"last words")

    before = gc.get_threshold()
    with opened(tmp_path, clock) as store:
        topic = store.create_topic("t")
        gc.set_threshold(1, 1, 1)
        try:
            for _ in range(300):
                Appends(topic)
                topic.append(b"x")
        finally:
            gc.set_threshold(*before)
        gc.collect()
        assert topic.scan().to_arrow()["value"].to_pylist().count(b"last words") == 300


@needs_extension
def test_objects_are_let_go_once_their_rows_are_written(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path, clock) as store:
        topic = store.create_topic("t")
        value, key = b"v" * 50, b"k" * 20
        topic.append(value, key=key)
        topic.flush()
        counts = (
            sys.getrefcount(value),
            sys.getrefcount(key),
            sys.getrefcount(topic),
            sys.getrefcount(tiered.Appended),
        )
        for _ in range(500):
            topic.append(value, key=key)
            topic.append(value, key=key, headers={"h": b""})
            with pytest.raises(TypeError):
                topic.append(value, other=1)  # type: ignore[call-arg]
        topic.flush()
        after = (
            sys.getrefcount(value),
            sys.getrefcount(key),
            sys.getrefcount(topic),
            sys.getrefcount(tiered.Appended),
        )
    assert all(abs(now - then) < 10 for now, then in zip(after, counts, strict=True))


@needs_extension
def test_a_forked_child_is_refused_though_a_thread_had_the_lock(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path, clock) as store:
        topic = store.create_topic("t")
        topic.append(b"1")
        writer = topic.opened.writers[0]  # type: ignore[attr-defined]
        writer.pending.lock.acquire()
        pid = os.fork()
        if pid == 0:
            try:
                topic.append(b"2")
            except tiered.StoreClosed:
                os._exit(7)
            except BaseException:  # noqa: BLE001
                os._exit(8)
            os._exit(9)
        writer.pending.lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert topic.append(b"3").offset == 1


@needs_extension
def test_a_closed_store_refuses(tmp_path: Path, clock: Clock) -> None:
    store = opened(tmp_path, clock)
    topic = store.create_topic("t")
    topic.append(b"1")
    store.close()
    with pytest.raises(tiered.StoreClosed):
        topic.append(b"2")
    assert topic.opened.writers[0].end_offset == 1  # type: ignore[attr-defined]


@needs_extension
def test_a_lock_is_a_lock() -> None:
    assert accelerator is not None
    lock = accelerator.Lock()
    with lock:
        assert lock.locked()
    assert not lock.locked()
    with pytest.raises(RuntimeError):
        lock.release()
    lock.acquire()
    waits = threading.Thread(target=lock.acquire)
    waits.start()
    lock.release()
    waits.join(10)
    assert lock.locked()
