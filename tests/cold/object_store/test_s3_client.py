"""Where S3 is, and as whom: endpoints that do not answer, and credentials that cannot be had."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import pytest

from tests.support.scripted_server import ETAG, Answer, options, refusal, serving, store_at
from tiered.cold.object_store import s3_client
from tiered.cold.object_store.connect import ColdOptions, open_object_store
from tiered.errors import ColdStorageError, ConfigError


def test_a_dead_endpoint_fails_soon_and_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    began = time.monotonic()
    with pytest.raises(ColdStorageError, match=endpoint) as caught:
        store_at(endpoint).get("key")
    assert caught.value.retryable
    assert time.monotonic() - began < 10


def test_an_endpoint_that_never_answers_fails_after_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ColdStorageError, match=endpoint) as caught:
            store_at(endpoint, read_timeout_seconds=0.1).put("key", b"x")
    assert caught.value.retryable


@pytest.mark.parametrize("status", [301, 307])
def test_a_redirect_is_told_with_its_target(status):
    """As of a server that wants https: the SDK looked for the bucket's region until the stack was full."""
    moved = Answer(status, b"<html>moved</html>", {"Location": "https://elsewhere/bucket"})
    with serving(lambda request: moved) as (endpoint, requests):
        store = store_at(endpoint)
        for call in (store.get, store.stat):
            with pytest.raises(ColdStorageError, match="redirect to https://elsewhere/") as caught:
                call("key")
    assert not caught.value.retryable
    assert len(requests) <= 4


@pytest.mark.parametrize("status", [500, 503])
def test_what_passes_is_repeated(status):
    answers = [refusal(status, "SlowDown"), Answer(200, b"", ETAG)]
    with serving(lambda request: answers.pop(0)) as (endpoint, requests):
        assert store_at(endpoint).put("key", b"x", if_none_match=True) == '"e"'
    assert [request.headers["if-none-match"] for request in requests] == ["*", "*"]


def test_a_write_is_one_round_trip():
    """The SDK asks before it sends what it takes for a file, bytes too: it waits for the answer, and then for another."""
    with serving(lambda request: Answer(200, b"", ETAG)) as (endpoint, requests):
        store_at(endpoint).put("key", b"x")
    assert [(request.body, request.headers.get("expect")) for request in requests] == [(b"x", None)]


def test_what_does_not_pass_is_raised_as_retryable():
    with serving(lambda request: refusal(503, "SlowDown")) as (endpoint, requests):
        with pytest.raises(ColdStorageError, match="SlowDown") as caught:
            store_at(endpoint).put("key", b"x")
    assert caught.value.retryable
    assert len(requests) == 2


def test_wrong_credentials_are_not_tried_again_and_stay_secret():
    with serving(lambda request: refusal(403, "SignatureDoesNotMatch")) as (endpoint, requests):
        store = open_object_store("s3://bucket", replace(options(endpoint), secret_key="hush-hush"))
        with pytest.raises(ColdStorageError, match="AWS_PROFILE") as caught:
            store.put("key", b"x")
    assert not caught.value.retryable
    assert len(requests) == 1
    assert "hush" not in f"{caught.value} {store!r}"


def test_no_credentials_at_all_names_the_chain_and_some_may_come(monkeypatch, tmp_path):
    """Without a restart; but looking for them can take seconds, so a second look is not taken at once."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    options = ColdOptions(endpoint_url="http://127.0.0.1:9", region="us-east-1", attempts=1)
    store = open_object_store("s3://bucket", options)
    with pytest.raises(ColdStorageError, match="AWS_\\* environment"):
        store.get("key")
    file.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    with pytest.raises(ColdStorageError, match="AWS_\\* environment"):
        store.get("key")
    monkeypatch.setattr(s3_client, "_SEARCH_AGAIN_SECONDS", 0.0)
    with pytest.raises(ColdStorageError, match="AWS_\\* environment"):
        store.get("key")
    with pytest.raises(ColdStorageError, match="check that it is up"):
        store.get("key")


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ("credential_process = /no/such/command", "no credentials: .*'/no/such/command'; .*AWS_PROFILE"),
        ("credential_process = echo AKIA", "from custom-process: JSONDecodeError: .*AWS_PROFILE"),
        ("credential_process = echo []", "from custom-process: AttributeError: .*AWS_PROFILE"),
        ("credential_process =", "from custom-process: IndexError: .*AWS_PROFILE"),
        (
            'credential_process = "open',
            "from custom-process: ValueError: No closing quotation; .*AWS_PROFILE",
        ),
        ("credential_process = sleep 60", "did not end within 0.05 s; .*AWS_PROFILE"),
        (
            "role_arn = r\nsource_profile = s\n[profile s]\ncredential_process = sleep 60",
            "did not end within 0.05 s; .*AWS_PROFILE",
        ),
        ("role_arn = arn:aws:iam::1:role/r\nsource_profile = none", "no credentials: .*AWS_PROFILE"),
        (
            "role_arn = arn:aws:iam::1:role/r\nweb_identity_token_file = /no/token",
            "'/no/token'; .*AWS_PROFILE",
        ),
        ("region = nowhere/else", "set cold.region"),
    ],
)
def test_credentials_that_cannot_be_had_are_the_buckets_trouble_in_bounded_time(
    monkeypatch, tmp_path, profile, words
):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "config"
    config.write_text(f"[profile odd]\n{profile}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "odd")
    # Twice that is what a process has; only one that hangs is to use it up.
    seconds = 0.025 if "sleep" in profile else 30.0
    options = ColdOptions(endpoint_url="http://127.0.0.1:9", attempts=1, read_timeout_seconds=seconds)
    store = open_object_store("s3://bucket", options)
    with pytest.raises(ColdStorageError, match=words) as caught:
        store.get("key")
    assert not caught.value.retryable


def test_credentials_are_asked_for_in_the_region_of_the_bucket(monkeypatch):
    """China and GovCloud have services of their own for roles."""
    seen = []

    class Seen(s3_client._Credentials):
        def __init__(self, session, seconds):
            seen.append(session.get_config_variable("region"))
            super().__init__(session, seconds)

    monkeypatch.setattr(s3_client, "_Credentials", Seen)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    s3_client._make_client(ColdOptions(region="cn-north-1"))
    assert seen == ["cn-north-1"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ('"AccessKeyId": "a", "Expiration": "2001-01-01T00:00:00Z"', "still expired"),
        ('"AccessKeyId": "a", "Expiration": "soon"', "soon"),
        ('"AccessKeyId": null', "not text"),
    ],
)
def test_keys_that_cannot_be_used_are_the_buckets_trouble(monkeypatch, tmp_path, keys, words):
    """Some are found out only when a request is signed; no restart is needed once they are put right."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    printed, config = tmp_path / "printed", tmp_path / "config"
    printed.write_text(f'{{"Version": 1, "SecretAccessKey": "b", "SessionToken": "c", {keys}}}')
    config.write_text(f"[default]\ncredential_process = cat {printed}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    options = ColdOptions(endpoint_url="http://127.0.0.1:9", region="us-east-1", attempts=1)
    store = open_object_store("s3://bucket", options)
    with pytest.raises(ColdStorageError, match=f"no credentials: .*{words}.*AWS_PROFILE") as caught:
        store.get("key")
    assert not caught.value.retryable
    printed.write_text('{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b"}')
    with pytest.raises(ColdStorageError, match="check that it is up"):
        store.get("key")


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://user:hush@127.0.0.1:9",
        "http://user:hush@ho st:9",
        "user:hush@host:9",
        "http://user:hush/x@host:9",
        "http://user:hush[@host:9",
    ],
)
def test_a_password_in_the_environments_endpoint_is_refused_and_not_shown(monkeypatch, endpoint):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL") as caught:
        open_object_store("s3://bucket", ColdOptions(attempts=1)).get("key")
    assert "hush" not in str(caught.value)


def test_the_environments_endpoint_is_addressed_by_path(monkeypatch):
    with serving(lambda request: Answer(200, b"abc", ETAG)) as (endpoint, requests):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.replace("127.0.0.1", "localhost"))
        changed = replace(options(endpoint), endpoint_url=None)
        assert open_object_store("s3://bucket/prefix", changed).get("a b").data == b"abc"
    assert requests[0].path == "/bucket/prefix/a%20b"
