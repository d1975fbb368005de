"""Fixtures for folders whose S3 tests are about the store and not about S3: they go to `tests.fast_s3`.

A folder's conftest.py imports both names. moto, which the other tests have, runs in the test's own process and takes
several milliseconds a request; it was half of the time of these tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fast_s3 import FastS3, fast_s3


@pytest.fixture(scope="session")
def fast_server(aws_environment: pytest.MonkeyPatch) -> Iterator[FastS3]:
    """An S3 server in a process of its own."""
    with fast_s3() as server:
        yield server


@pytest.fixture
def s3_endpoint(fast_server: FastS3, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its URL, which is in the environment during this test; other folders' tests have another one there."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", fast_server.url)
    return fast_server.url
