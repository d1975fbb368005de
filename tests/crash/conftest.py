"""A small disk of its own for tests that fill it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.small_disk import SmallDisk


def mount(*arguments: str) -> None:
    """Run mount; skip the test where that is not allowed."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting needs root on Linux")
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")


def unmount(path: Path) -> None:
    """Unmount, also where something is still open."""
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path))
    try:
        yield SmallDisk(path)
    finally:
        unmount(path)


@pytest.fixture
def small_ext4(tmp_path: Path) -> Iterator[SmallDisk]:
    """One with a journal, on a file."""
    path, image = tmp_path / "disk", tmp_path / "image"
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(12 << 20)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
    mount("-o", "loop", str(image), str(path))
    try:
        yield SmallDisk(path)
    finally:
        unmount(path)


@pytest.fixture
def read_only_twin(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A directory, and the same directory where nothing can be written."""
    real, twin = tmp_path / "real", tmp_path / "twin"
    real.mkdir()
    twin.mkdir()
    mount("--bind", str(real), str(twin))
    try:
        mount("-o", "remount,bind,ro", str(twin))
        yield real, twin
    finally:
        unmount(twin)
