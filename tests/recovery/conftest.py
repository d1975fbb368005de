"""The S3 endpoint of these tests, and the buckets that they restore from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fast_endpoint import s3_endpoint

__all__ = ["s3_endpoint"]


@pytest.fixture(params=["s3", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        found: str = request.getfixturevalue("s3_bucket")
        return found
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"
