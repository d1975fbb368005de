"""The S3 endpoint of folders whose tests are about the store and not about S3: `tests.support.s3_server`.

A folder's conftest.py imports it. moto, which the other tests have, runs in the test's own process and takes
several milliseconds a request; it was half of the time of these tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.s3_server import S3Process


@pytest.fixture
def s3_endpoint(fast_server: S3Process, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its URL, which is in the environment during this test; other folders' tests have another one there."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", fast_server.url)
    return fast_server.url


@pytest.fixture(params=["s3", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty cold tier."""
    if request.param == "s3":
        found: str = request.getfixturevalue("s3_bucket")
        return found
    return f"file://{tmp_path}/bucket"
