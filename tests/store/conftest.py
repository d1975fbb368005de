"""The S3 endpoint of these tests."""

from __future__ import annotations

from tests.fast_endpoint import fast_server, s3_endpoint

__all__ = ["fast_server", "s3_endpoint"]
