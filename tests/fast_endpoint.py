"""Fixtures for folders whose S3 tests are about the store and not about S3: they go to `tests.s3_server`.

A folder's conftest.py imports both names. moto, which the other tests have, runs in the test's own process and takes
several milliseconds a request; it was half of the time of these tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.s3_server import S3Process, s3_process


@pytest.fixture(scope="session")
def fast_server(aws_environment: pytest.MonkeyPatch) -> Iterator[S3Process]:
    """An S3 server in a process of its own."""
    with s3_process() as server:
        yield server


@pytest.fixture
def s3_endpoint(fast_server: S3Process, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its URL, which is in the environment during this test; other folders' tests have another one there."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", fast_server.url)
    return fast_server.url
