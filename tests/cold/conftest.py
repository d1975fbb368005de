"""Buckets for the tests of the cold tier."""

from __future__ import annotations

from uuid import uuid4

import boto3
import pytest

from tiered.cold.object_store.options import ColdOptions


@pytest.fixture
def s3_options(s3_endpoint) -> ColdOptions:
    return ColdOptions(
        endpoint_url=s3_endpoint, region="us-east-1", access_key="test", secret_key="test", attempts=2
    )


@pytest.fixture
def s3_raw(s3_endpoint):
    """A plain client, to look at the bucket from outside."""
    return boto3.client("s3", endpoint_url=s3_endpoint)


@pytest.fixture
def new_bucket(s3_raw) -> str:
    """Name of a new bucket."""
    name = f"tiered-{uuid4().hex}"
    s3_raw.create_bucket(Bucket=name)
    return name
