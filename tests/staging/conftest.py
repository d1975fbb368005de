"""The S3 endpoint of these tests."""

from __future__ import annotations

from tests.support.fast_endpoint import s3_endpoint

__all__ = ["s3_endpoint"]
