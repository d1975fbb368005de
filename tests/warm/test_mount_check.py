"""A store is neither written nor tiered nor restored on a network file system that tells so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tiered
from tiered.warm import mount_check

LINE = "36 35 {} / /mnt/some\\040where rw,noatime shared:1 - {} host:/export rw,vers=4.2\n"


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Say what `tmp_path` is mounted from: write its type to the file that is returned."""
    monkeypatch.setattr(mount_check, "MOUNTS", tmp_path / "mountinfo")
    return tmp_path / "mountinfo"


def say(mounted: Path, kind: str) -> None:
    device = mounted.parent.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounted.write_text(LINE.format("0:1", "proc") + LINE.format(number, kind))


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_network_file_system_is_refused_before_anything_is_made(
    tmp_path: Path, mounted: Path, kind: str
) -> None:
    say(mounted, kind)
    root = tmp_path / "new" / "data"
    for change in (
        lambda: tiered.open(root),
        lambda: tiered.open(root, tierer=True),
        lambda: tiered.restore(f"file://{tmp_path}/bucket", root),
    ):
        with pytest.raises(tiered.ConfigError, match=rf"network file system \({kind}\).*local disk"):
            change()
    assert not root.parent.exists()


@pytest.mark.parametrize("kind", ["ext4", "fuse.fuse-overlayfs", "9p", None])
def test_others_and_those_that_are_not_known_are_taken(
    tmp_path: Path, mounted: Path, kind: str | None
) -> None:
    if kind is not None:
        say(mounted, kind)
    with tiered.open(tmp_path / "data") as store:
        store.create_topic("t").append(b"v")
    if mounted.exists():
        say(mounted, "nfs")
    with tiered.open(tmp_path / "data", read_only=True) as store:
        assert store.topic("t").scan().to_arrow().num_rows == 1


def test_this_systems_own_mounts_are_understood(tmp_path: Path) -> None:
    if not mount_check.MOUNTS.exists():
        pytest.skip("no Linux")
    assert mount_check.file_system(tmp_path / "not" / "there") in mount_check.MOUNTS.read_text()
    assert mount_check.file_system(Path("/proc/self")) == "proc"
