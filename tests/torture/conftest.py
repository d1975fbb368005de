"""A warm zygote for all tests of a process, and a bucket of each kind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiered
from tests.support.children import Zygote, zygote_with_endpoint
from tests.support.fast_endpoint import s3_endpoint, url
from tests.support.s3_server import S3Process
from tests.torture.place import Place

__all__ = ["s3_endpoint", "url"]


@pytest.fixture(scope="session")
def zygote(fast_server: S3Process, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with zygote_with_endpoint(
        "tests.torture.zygote", fast_server.url, tmp_path_factory.mktemp("zygote")
    ) as zygote:
        yield zygote


@pytest.fixture
def place(zygote: Zygote, tmp_path: Path, url: str) -> Iterator[Place]:
    """A new store, its writer open."""
    place = Place(zygote, tmp_path, url)
    yield place
    with contextlib.suppress(tiered.TieredError):  # what a fenced partition had pending is not its any more
        place.store.close()
