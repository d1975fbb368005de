"""Stores with records in every tier, for tests to read; they need PySpark, so they are built on demand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tiered

if TYPE_CHECKING:
    from tests.spark.stores import Place


def build(root: Path, bucket: str | None = None) -> Iterator[Place]:
    from tests.spark.stores import mixed

    found = mixed(root / "store", bucket or (root / "bucket").as_uri())
    yield found
    found.store.close()


@pytest.fixture(scope="session")
def on_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A store to read from, with its bucket in a directory."""
    yield from build(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="session")
def on_s3(s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A store to read from, with its bucket in S3."""
    from tests.spark.stores import new_bucket

    yield from build(tmp_path_factory.mktemp("s3"), new_bucket(s3_endpoint))


@pytest.fixture(params=["on_files", "on_s3"])
def place(request: pytest.FixtureRequest) -> Place:
    """Each of the two."""
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Place]:
    """A store that a test may change."""
    yield from build(tmp_path)


@pytest.fixture
def own_on_s3(s3_endpoint: str, tmp_path: Path) -> Iterator[Place]:
    """A store that a test may change, with its bucket in S3."""
    from tests.spark.stores import new_bucket

    yield from build(tmp_path, new_bucket(s3_endpoint))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[tiered.Store, str]]:
    """A topic `t` of two partitions with 10 and 30 records, and the path of its store."""
    from tests.spark.micro_batches import fill

    with tiered.open(tmp_path / "store") as store:
        store.create_topic("t", partitions=2)
        fill(store, 10, 30)
        yield store, str(tmp_path / "store")
