"""The S3 endpoint of these tests, and the buckets that they restore from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fast_endpoint import s3_endpoint, url

__all__ = ["s3_endpoint", "url"]


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"
