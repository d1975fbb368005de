"""s3fs, given `storage_options`, and boto3 are one: endpoint, credentials, attempts, and what an answer means.

The store itself reads and writes S3 by boto3 alone. What users read a bucket with (DuckDB, pandas, Dask) is s3fs.
"""

from __future__ import annotations

import re
from types import SimpleNamespace

import botocore.endpoint
import pytest

from tests.cold.object_store.contract import ObjectStoreContract
from tests.support.s3_server import s3_thread
from tests.support.scripted_server import Answer, Request, options, refusal, serving
from tiered.cold.object_store.connect import ColdOptions
from tiered.cold.object_store.fsspec_store import FsspecStore
from tiered.cold.object_store.s3_store import S3Store
from tiered.errors import ColdStorageError, ObjectNotFound

pytest.importorskip("s3fs")


def both(**given: object) -> tuple[S3Store, FsspecStore]:
    chosen = ColdOptions(attempts=2, conditional_writes="off", **given)  # type: ignore[arg-type]
    return S3Store("bucket", "prefix", chosen), FsspecStore("s3://bucket/prefix", chosen)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(botocore.endpoint, "time", SimpleNamespace(sleep=lambda _: None))


def signer(request: Request) -> tuple[str, str, bool]:
    """Who signed it, for which region, and whether with a session token."""
    found = re.search(r"Credential=([^/]+)/\d+/([^/]+)/s3/", request.headers["authorization"])
    assert found
    return found[1], found[2], "x-amz-security-token" in request.headers


@pytest.mark.parametrize("given", ["options", "environment"])
def test_both_sign_with_the_same_credentials_for_the_same_endpoint(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    answer = Answer(200, b"abc", {"ETag": '"e"', "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"})
    with serving(lambda request: answer) as (endpoint, requests):
        if given == "options":
            stores = both(
                endpoint_url=endpoint, region="eu-x-1", access_key="AK", secret_key="s", session_token="t"
            )
        else:
            for name, value in {
                "AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": "eu-x-1", "AWS_ACCESS_KEY_ID": "AK",
                "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t",
            }.items():  # fmt: skip
                monkeypatch.setenv(name, value)
            stores = both()
        for store in stores:
            assert store.get("key").data == b"abc"
            store.close()
    assert {signer(request) for request in requests} == {("AK", "eu-x-1", True)}
    assert {request.path.partition("?")[0] for request in requests} == {"/bucket/prefix/key"}


ANSWERS = [
    (refusal(404, "NoSuchKey"), ObjectNotFound, False),
    (refusal(404, "NoSuchBucket"), ColdStorageError, False),
    (refusal(403, "AccessDenied"), ColdStorageError, False),
    (refusal(403, "SignatureDoesNotMatch"), ColdStorageError, False),
    (refusal(400, "ExpiredToken"), ColdStorageError, False),
]


@pytest.mark.parametrize(("answer", "kind", "retryable"), ANSWERS)
def test_an_answer_means_the_same_to_both(answer: Answer, kind: type, retryable: bool) -> None:
    with serving(lambda request: answer) as (endpoint, _):
        for store in both(endpoint_url=endpoint, region="us-east-1", access_key="k", secret_key="s"):
            with pytest.raises(ColdStorageError) as caught:
                store.get("key")
            store.close()
            assert (type(caught.value), caught.value.retryable) == (kind, retryable)


def test_both_ask_as_often_before_they_give_up() -> None:
    with serving(lambda request: refusal(503, "SlowDown")) as (endpoint, requests):
        for store in both(endpoint_url=endpoint, region="us-east-1", access_key="k", secret_key="s"):
            requests.clear()
            with pytest.raises(ColdStorageError, match="SlowDown") as caught:
                store.get_range("key", 0, 1)
            assert caught.value.retryable
            assert len(requests) == 2
            store.close()


@pytest.mark.slow
class TestS3fs(ObjectStoreContract):
    """What one of the two writes, and how, is held to the same contract."""

    @pytest.fixture
    def store(self):
        with s3_thread() as (endpoint, _):
            yield FsspecStore("s3://bucket/prefix", options(endpoint, conditional_writes="off"))


def test_each_reads_what_the_other_wrote() -> None:
    with s3_thread() as (endpoint, _):
        one, other = both(endpoint_url=endpoint, region="us-east-1", access_key="k", secret_key="s")
        one.put("a/by boto3", b"1")
        other.put("a/by s3fs", b"2")
        for store in (one, other):
            assert [store.get(f"a/{name}").data for name in ("by boto3", "by s3fs")] == [b"1", b"2"]
            assert [item.key for item in store.list("")] == ["a/by boto3", "a/by s3fs"]
        one.close()
