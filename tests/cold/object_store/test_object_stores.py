"""Every backend keeps the contract."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.cold.object_store.contract import ObjectStoreContract
from tests.support.s3_server import s3_thread
from tests.support.scripted_server import options
from tiered.cold.object_store.connect import ColdOptions, open_object_store
from tiered.errors import ColdStorageError


class TestMemory(ObjectStoreContract):
    @pytest.fixture
    def store(self):
        return open_object_store(f"memory://{uuid4().hex}/prefix")


class TestFile(ObjectStoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return open_object_store(f"file://{tmp_path}/not made yet/cold")


class TestS3(ObjectStoreContract):
    dates_uploads = False

    @pytest.fixture
    def store(self, new_bucket, s3_options):
        store = open_object_store(f"s3://{new_bucket}/some prefix/v1", s3_options)
        yield store
        store.close()


class TestSmallServer(ObjectStoreContract):
    """A server that is strict where moto is not; with everything that can be asked of an upload."""

    @pytest.fixture
    def store(self):
        with s3_thread() as (endpoint, _):
            asked = options(
                endpoint,
                encryption="aws:kms",
                tags=(("team", "data"),),
                read_back=True,
                part_bytes=5 << 20,
                upload_bytes_per_second=1 << 32,
                requests_per_second=10_000,
            )
            store = open_object_store("s3://bucket/some prefix/v1", asked)
            yield store
            store.close()


class TestS3WithoutPrefixAndConditions(ObjectStoreContract):
    @pytest.fixture
    def store(self):
        with s3_thread() as (endpoint, _):
            store = open_object_store("s3://bucket", options(endpoint, conditional_writes="off"))
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


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="Linux has a device without room")
def test_no_room_for_what_waits_to_be_sent_is_told_once_and_as_such(monkeypatch):
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", lambda **_: FULL.open("w+b"))
    store = open_object_store("memory://full")
    with pytest.raises(ColdStorageError, match="No space left") as caught, store.upload("key") as upload:
        upload.write(b"waits in a buffer")
        upload.commit()
    assert caught.value.retryable
    with pytest.raises(KeyError), store.upload("key") as upload:
        upload.write(b"waits in a buffer")
        raise KeyError
    assert list(store.list("")) == []


# Read now: the fixtures take the AWS_* of whoever runs the tests out of the environment.
ENDPOINT = os.environ.get("TIERED_TEST_S3_ENDPOINT")
BUCKET = os.environ.get("TIERED_TEST_S3_BUCKET", "tiered-test")
REACHED_BY = {
    "endpoint_url": ENDPOINT,
    "region": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
    "access_key": os.environ.get("AWS_ACCESS_KEY_ID"),
    "secret_key": os.environ.get("AWS_SECRET_ACCESS_KEY"),
    "session_token": os.environ.get("AWS_SESSION_TOKEN"),
    "conditional_writes": os.environ.get("TIERED_TEST_S3_CONDITIONAL_WRITES", "on"),
}


if ENDPOINT is not None:

    class TestEndpoint(ObjectStoreContract):
        """An S3-compatible server of the operator's, in a bucket that is there; see docs/operations.md."""

        @pytest.fixture
        def store(self):
            store = open_object_store(f"s3://{BUCKET}/{uuid4().hex}", ColdOptions(**REACHED_BY))
            yield store
            store.delete([item.key for item in store.list("")])
            store.close()
