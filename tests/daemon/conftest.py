"""A warm zygote for daemons and writers, and a store's place with its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.site import Site
from tests.support.children import Zygote, zygote_with_endpoint
from tests.support.fast_endpoint import s3_endpoint
from tests.support.s3_server import S3Process

__all__ = ["s3_endpoint"]


@pytest.fixture(scope="session")
def zygote(fast_server: S3Process, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with zygote_with_endpoint(
        "tests.daemon.zygote", fast_server.url, tmp_path_factory.mktemp("zygote")
    ) as zygote:
        yield zygote


@pytest.fixture
def site(zygote: Zygote, tmp_path: Path, s3_bucket: str) -> Site:
    return Site(zygote, tmp_path, s3_bucket)
