"""Every backend keeps the contract."""

from __future__ import annotations

import os
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.cold.contract import ObjectStoreContract
from tiered.cold.open import ColdOptions, open_object_store


class TestMemory(ObjectStoreContract):
    @pytest.fixture
    def store(self):
        return open_object_store(f"memory://{uuid4().hex}/prefix")


class TestFile(ObjectStoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return open_object_store(f"file://{tmp_path}/not made yet/cold")


class TestS3(ObjectStoreContract):
    @pytest.fixture
    def store(self, new_bucket, s3_options):
        store = open_object_store(f"s3://{new_bucket}/some prefix/v1", s3_options)
        yield store
        store.close()


class TestS3WithoutPrefixAndConditions(ObjectStoreContract):
    @pytest.fixture
    def store(self, new_bucket, s3_options):
        options = ColdOptions(
            endpoint_url=s3_options.endpoint_url,
            region="us-east-1",
            access_key="test",
            secret_key="test",
            conditional_writes="off",
        )
        store = open_object_store(f"s3://{new_bucket}", options)
        yield store
        store.close()


class PlainFileSystem(MemoryFileSystem):
    """A driver of somebody else: everything that fsspec promises, and nothing more."""

    protocol = "plain"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("plain://"))


class TestAnyDriver(ObjectStoreContract):
    @pytest.fixture
    def store(self):
        fsspec.register_implementation("plain", PlainFileSystem, clobber=True)
        return open_object_store(f"plain://{uuid4().hex}/prefix", ColdOptions(conditional_writes="off"))


if "TIERED_TEST_S3_ENDPOINT" in os.environ:

    class TestEndpoint(ObjectStoreContract):
        """An S3-compatible server of the user's, with the credentials of the environment."""

        @pytest.fixture
        def store(self):
            bucket = os.environ.get("TIERED_TEST_S3_BUCKET", "tiered-test")
            options = ColdOptions(
                endpoint_url=os.environ["TIERED_TEST_S3_ENDPOINT"],
                region=os.environ.get("AWS_REGION", "us-east-1"),
            )
            store = open_object_store(f"s3://{bucket}/{uuid4().hex}", options)
            yield store
            store.delete([item.key for item in store.list("")])
            store.close()
