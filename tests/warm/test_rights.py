"""Other users of the host: kept out of what is new, let in as far as the mode and the group of the root say.

A second user is a real one: a forked child that gives up root for good. Elsewhere those tests are skipped.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import stat
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import tiered
from tests.support.stores import HOUR_US, values
from tiered.cold.fetch.disk_cache import DiskCache
from tiered.cold.fetch.local_copies import LocalCopies
from tiered.engine.locations import cache_options

WRITER, DAEMON, READER, STRANGER, GROUP = 60001, 60002, 60003, 65534, 60009
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can enter."""
    with TemporaryDirectory(prefix="tiered-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def umask() -> Iterator[Callable[[int], None]]:
    before = os.umask(0o022)
    yield lambda mask: (os.umask(mask), None)[1]
    os.umask(before)


def as_user(user: int, do: Callable[[], Any], *, groups: tuple[int, ...] = ()) -> Any:
    """Return what `do` returns in a process of `user`, which is in a group of its own and in `groups`."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(list(groups))
            os.setgid(user)
            os.setuid(user)
            answer = True, do()
        except BaseException:  # noqa: BLE001 - the parent says it
            answer = False, traceback.format_exc()
        os.write(write_end, pickle.dumps(answer))
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    done, answer = pickle.loads(data)
    if not done:
        pytest.fail(f"in the process of user {user}:\n{answer}")
    return answer


def live(root: Path, topic: str = "t", **options: Any) -> list[bytes]:
    """Use every part of a store once; return what is in it."""
    with tiered.open(root, cold=f"file://{root.parent}/bucket", **options) as store:
        found = store.create_topic(topic, exist_ok=True)
        found.append_many([b"old"] * 10)
        found.roll()
        store.tier((store.context.clock() + HOUR_US) // 1000)
        found.append(b"the secret record", sync=True)
        return values(found)


def modes(root: Path) -> dict[str, int]:
    return {
        str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]
    }


def expected(root: Path, directory: int, file: int, lock: int) -> dict[str, int]:
    return {
        str(path.relative_to(root)): directory
        if path.is_dir()
        else lock
        if path.name.endswith("lock")
        else file
        for path in [root, *root.rglob("*")]
    }


def held(path: Path) -> bool:
    """Whether this process can keep everybody else from the lock at `path`."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except PermissionError:
        return False
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_what_is_new_is_its_owners_alone(mask: int, place: Path, umask: Callable[[int], None]) -> None:
    """Store and bucket, every file and folder in them, whatever the umask says."""
    umask(mask)
    live(place / "made" / "store")
    for root in (place / "made" / "store", place / "made" / "bucket"):
        assert len(modes(root)) > 8
        assert modes(root) == expected(root, 0o700, 0o600, 0o600)
    # Not ours to shut: others may have something beside it.
    assert stat.S_IMODE((place / "made").stat().st_mode) == 0o777 & ~mask


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize(
    ("root_mode", "directory", "file", "lock"),
    [
        (0o700, 0o700, 0o600, 0o600),
        (0o750, 0o750, 0o640, 0o600),  # who may not write may not hold a lock
        (0o2770, 0o2770, 0o660, 0o660),
        (0o755, 0o755, 0o644, 0o600),
        (0o777, 0o775, 0o664, 0o660),  # others are never let in to write
    ],
)
def test_a_root_that_was_there_is_the_setting(
    root_mode: int, directory: int, file: int, lock: int, mask: int, place: Path, umask: Callable[[int], None]
) -> None:
    """Its mode stays, and everything that is made below it follows, whatever the umask says."""
    umask(mask)
    for root in (place / "store", place / "bucket"):
        root.mkdir()
        root.chmod(root_mode)
    live(place / "store")
    for root in (place / "store", place / "bucket"):
        assert modes(root) == expected(root, directory, file, lock) | {".": root_mode}


def test_a_root_that_was_changed_takes_along_what_is_there(place: Path, umask: Callable[[int], None]) -> None:
    """With the next open for writing, and only what lies in the store: no link leads out of it."""
    store = place / "store"
    live(store)
    linked, named, pipe = place / "linked", place / "named", store / "pipe"
    for path in (linked, named):
        path.write_text("mine")
        path.chmod(0o600)
    (store / "topics" / "link").symlink_to(linked)
    (store / "topics" / "name").hardlink_to(named)
    os.mkfifo(pipe)  # waited for, it would stop the writer for good
    store.chmod(0o750)
    live(store, "another")
    for path in (store / "topics" / "link", store / "topics" / "name", pipe):
        path.unlink()
    assert modes(store) == expected(store, 0o750, 0o640, 0o600)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (linked, named)] == [0o600, 0o600]

    store.chmod(0o700)
    live(store)
    assert modes(store) == expected(store, 0o700, 0o600, 0o600)


def test_a_store_of_a_release_before_keeps_its_modes_but_for_its_locks(
    place: Path, umask: Callable[[int], None]
) -> None:
    """It was made as the umask said. Others could read the locks, and so hold them."""
    store = place / "store"
    live(store)
    for path in [store, *store.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    live(store)
    assert modes(store) == expected(store, 0o755, 0o644, 0o600)


def test_a_cache_elsewhere_is_its_owners_alone(place: Path, umask: Callable[[int], None]) -> None:
    """It has the records too, and its folder's folder may be everybody's."""
    umask(0o022)
    settings = tiered.Settings.model_validate({"store": {"cache_path": str(place / "cache")}})
    for options, mode in (
        (cache_options(settings, place), 0o700),
        (cache_options(tiered.Settings(), place), 0o755),
    ):
        assert options.directory is not None
        cache = DiskCache(options.directory, 1 << 20, outside_store=options.outside_store)
        cache.put(("key", 0, 1), memoryview(b"x"), spare=False)
        cache.close()
        assert modes(options.directory) == expected(options.directory, mode, mode & 0o644, 0o600)
        shutil.rmtree(options.directory)


def test_copies_of_objects_follow_the_store(place: Path, umask: Callable[[int], None]) -> None:
    umask(0o077)
    LocalCopies(place / "promoted").write("topic/id/0/data/name", [b"x"])
    LocalCopies(place / "promoted", counts_fetches=True).count_fetch("another/id/0/data/name")
    assert len(modes(place / "promoted")) == 11
    assert modes(place / "promoted") == expected(place / "promoted", 0o755, 0o644, 0o600)


@needs_root
def test_a_stranger_reads_and_holds_nothing(place: Path, umask: Callable[[int], None]) -> None:
    umask(0o022)
    live(place / "store")

    def try_everything() -> list[str]:
        got = []
        for path in every:
            try:
                os.open(path, os.O_RDONLY)
                got.append(str(path))
            except PermissionError:
                pass
        return got

    every = [place / "store", place / "bucket", *place.rglob("*")]
    assert as_user(STRANGER, try_everything) == []


@needs_root
def test_a_reader_of_the_group_reads_and_holds_no_lock(place: Path, umask: Callable[[int], None]) -> None:
    """``chgrp`` and ``chmod g+rx`` on the root of a store that is there: all of it, also what comes later."""
    store = place / "store"
    wanted = live(store)
    os.chown(store, 0, GROUP)
    store.chmod(0o2750)
    for path in (place / "bucket", *(place / "bucket").rglob("*")):
        os.chown(path, 0, GROUP)
        path.chmod(0o750 if path.is_dir() else 0o640)
    wanted = live(store)

    def read() -> list[bytes]:
        with tiered.open(store, read_only=True) as opened:
            return values(opened.topic("t"))

    locks = sorted(store.rglob("*.lock"))
    assert len(locks) >= 3
    assert as_user(READER, read, groups=(GROUP,)) == wanted
    assert as_user(READER, lambda: [held(path) for path in locks], groups=(GROUP,)) == [False] * len(locks)
    with pytest.raises(pytest.fail.Exception, match="Permission denied"):
        as_user(STRANGER, read)


@needs_root
def test_a_daemon_of_another_user_shares_the_store_by_the_group(
    place: Path, umask: Callable[[int], None]
) -> None:
    """``chmod g+rwxs`` on the roots: each tiers, seals and deletes what the other made, and takes its locks."""
    umask(0o077)
    store = place / "store"
    for root in (store, place / "bucket"):
        root.mkdir()
        os.chown(root, WRITER, GROUP)
        root.chmod(0o2770)

    def write() -> int:
        with tiered.open(store, cold=f"file://{place}/bucket") as opened:
            topic = opened.create_topic("t", exist_ok=True)
            topic.append_many([b"x"] * 5)
            topic.roll()
            return topic.append(b"x", sync=True).offset

    def tier() -> int:
        with tiered.open(store, tierer=True) as opened:
            opened.tier((opened.context.clock() + HOUR_US) // 1000)
            return len(values(opened.topic("t")))

    for round_ in range(1, 3):
        assert as_user(WRITER, write, groups=(GROUP,)) == round_ * 6 - 1
        assert as_user(DAEMON, tier, groups=(GROUP,)) == round_ * 6
    owners = {path.stat().st_uid for path in store.rglob("*")}
    assert owners == {WRITER, DAEMON}
    assert {path.stat().st_gid for path in [*store.rglob("*"), *(place / "bucket").rglob("*")]} == {GROUP}


@needs_root
def test_what_root_makes_in_a_store_is_the_owners(place: Path, umask: Callable[[int], None]) -> None:
    """Else one ``sudo tiered tier`` would lock the service out of its own store."""
    for root in (place / "store", place / "bucket"):
        root.mkdir(mode=0o700)
        os.chown(root, WRITER, WRITER)
    live(place / "store")
    assert {(path.stat().st_uid, path.stat().st_gid) for path in place.rglob("*")} == {(WRITER, WRITER)}
    place.chmod(0o777)
    as_user(WRITER, lambda: live(place / "store"))


@needs_root
def test_a_group_that_cannot_be_given_gives_no_other_group_its_rights(place: Path) -> None:
    """The writer is in no group of the root's: its own group gets what everybody gets."""
    store = place / "store"
    store.mkdir()
    os.chown(store, STRANGER, GROUP)
    store.chmod(0o770)
    assert as_user(STRANGER, lambda: tiered.open(store).close()) is None
    assert modes(store)["store.json"] == 0o600
