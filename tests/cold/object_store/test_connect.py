"""From a URL and options to a store, or to a message that says what to write."""

from __future__ import annotations

import pickle
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tiered.cold.object_store.connect import ColdOptions, open_object_store
from tiered.cold.object_store.file_store import FileStore
from tiered.cold.object_store.fsspec_store import FsspecStore
from tiered.cold.object_store.s3_store import S3Store
from tiered.errors import ColdStorageError, ConfigError


@pytest.mark.parametrize(
    ("url", "kind", "shown"),
    [
        ("s3://bucket", S3Store, "s3://bucket"),
        ("s3://bucket/", S3Store, "s3://bucket"),
        ("s3://bucket/some/prefix/", S3Store, "s3://bucket/some/prefix"),
        ("s3a://bucket/prefix", S3Store, "s3://bucket/prefix"),
        ("file:///srv/cold/", FileStore, "file:///srv/cold"),
        ("file:///srv/a b%20c", FileStore, "file:///srv/a b%20c"),
        ("memory://name/prefix", FsspecStore, "memory://name/prefix"),
    ],
)
def test_a_url_opens_a_store_and_contacts_nothing(url, kind, shown):
    store = open_object_store(url)
    assert type(store) is kind
    assert store.url == shown


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("/srv/cold", "file:///absolute"),
        ("cold", "s3://bucket/prefix"),
        ("", "s3://bucket/prefix"),
        ("file://relative/path", "file:///absolute/directory"),
        ("file://", "file:///absolute/directory"),
        ("file:///", "file:///absolute/directory"),
        ("file:////", "file:///absolute/directory"),
        ("file:///srv/../etc", "dot name"),
        ("file:///srv/a\0b", "NUL"),
        ("s3://bucket/a\0b", "NUL"),
        ("file:///srv/.tiered", "reserved"),
        ("s3://", "names no bucket"),
        ("memory://", "names no bucket"),
        ("gs:///", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://bucket/a//b", "one slash"),
        ("s3://bucket/prefix?region=x", r"\[cold\]"),
        ("s3://key:secret@bucket/prefix", "password"),
        ("ftp://user:secret@host/path", "password"),
        ("s3://key:a/secret@bucket/prefix", "password"),
        ("s3://secret@bucket/prefix", "user"),
        ("s3://bucket/prefix?X-Amz-Signature=secret", r"\[cold\]"),
        ("s3://key:12/secret@bucket/prefix", "password"),
        ("S3://secret@bucket/prefix", "user"),
        ("s3://?secret", r"\[cold\]"),
        ("s3:///prefix?secret", r"\[cold\]"),
        ("zz://bucket/prefix?secret", r"\[cold\]"),
        ("s3:/key:secret@bucket/prefix", "s3://bucket/prefix"),
        ("key:secret@bucket/prefix", "s3://bucket/prefix"),
        ("zz://secret@bucket/prefix", "nothing is known of zz"),
        ("http://host/path", "no object store"),
        ("grpc://host:1", "nothing is known of grpc"),
        ("nonsense://x", "nothing is known of nonsense"),
    ],
)
def test_a_url_that_cannot_work_is_refused_with_what_to_write(url, words):
    with pytest.raises(ConfigError, match=words) as caught:
        open_object_store(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("scheme", "package"), [("gs", "gcsfs"), ("abfs", "adlfs"), ("gcs", "gcsfs")])
def test_a_missing_driver_is_named_by_its_package(monkeypatch, scheme, package):
    def no_driver(protocol):
        raise ImportError(f"no module for {protocol}")

    monkeypatch.setattr(fsspec, "get_filesystem_class", no_driver)
    with pytest.raises(ConfigError, match=f"pip install {package}"):
        open_object_store(f"{scheme}://bucket/prefix")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"conditional_writes": "maybe"}, "conditional_writes"),
        ({"conditional_writes": False}, "conditional_writes"),
        ({"access_key": "a"}, "together"),
        ({"secret_key": "a"}, "together"),
        ({"session_token": "a"}, "session token"),
        ({"attempts": 0}, "attempts"),
        ({"upload_threads": 0}, "upload_threads"),
        ({"connect_timeout_seconds": 0}, "connect_timeout_seconds"),
        ({"part_bytes": 1 << 20}, "part_bytes"),
        ({"endpoint_url": "localhost:9000"}, "http://127.0.0.1:9000"),
        ({"endpoint_url": "http://key:hush@host"}, "credentials"),
        ({"endpoint_url": "key:hush@host:9"}, "http://127.0.0.1:9000"),
        ({"endpoint_url": "http://[host"}, "http://127.0.0.1:9000"),
    ],
)
def test_an_option_that_cannot_work_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words) as caught:
        ColdOptions(**changes)
    assert "hush" not in str(caught.value)


def test_options_pickle_and_do_not_show_secrets():
    options = ColdOptions(access_key="AKIA-x", secret_key="hush", session_token="hush-too")
    assert pickle.loads(pickle.dumps(options)) == options
    assert "hush" not in repr(options)
    assert "AKIA" not in repr(options)
    assert "hush" not in repr(open_object_store("s3://bucket", options))


class OtherFileSystem(MemoryFileSystem):
    """Somebody's driver, which fails as drivers do."""

    protocol = "other"
    failure: Exception | None = None

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("other://"))

    def cat_file(self, path, start=None, end=None, **kwargs):
        if self.failure:
            raise self.failure
        return super().cat_file(path, start, end, **kwargs)


@pytest.fixture
def other(monkeypatch):
    fsspec.register_implementation("other", OtherFileSystem, clobber=True)
    return lambda failure=None: monkeypatch.setattr(OtherFileSystem, "failure", failure)


def test_a_condition_on_a_backend_that_has_none_is_refused_by_name(other):
    store = open_object_store(f"other://{uuid4().hex}")
    assert not store.conditional_writes
    for condition in ({"if_none_match": True}, {"if_match": "x"}):
        with pytest.raises(ConfigError, match='conditional_writes = "off"'):
            store.put("key", b"x", **condition)
    assert list(store.list("")) == []
    store.put("key", b"x")


class StatusError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"status {code}\nsecond line")
        self.code = code


@pytest.mark.parametrize(
    ("failure", "retryable"),
    [
        (StatusError(503), True),
        (StatusError(429), True),
        (StatusError(403), False),
        (StatusError(400), False),
        (TimeoutError("slow"), True),
        (ConnectionResetError("reset"), True),
        (PermissionError("denied"), False),
        (RuntimeError("of the driver"), False),
    ],
)
def test_nothing_of_a_driver_escapes(other, failure, retryable):
    store = open_object_store(f"other://{uuid4().hex}")
    store.put("key", b"abc")
    other(failure)
    for call in (lambda: store.get("key"), lambda: store.get_range("key", 0, 1)):
        with pytest.raises(ColdStorageError, match="cannot get other://.*/key: ") as caught:
            call()
        assert type(caught.value) is ColdStorageError
        assert caught.value.retryable is retryable
        assert "\n" not in str(caught.value)


def test_an_object_that_may_not_be_deleted_holds_up_no_other(other, monkeypatch):
    def held(self, path):
        if path.endswith("a"):
            raise PermissionError("under a hold")
        super(OtherFileSystem, self).rm_file(path)

    monkeypatch.setattr(OtherFileSystem, "rm_file", held, raising=False)
    store = open_object_store(f"other://{uuid4().hex}")
    for key in "abc":
        store.put(key, b"x")
    with pytest.raises(ColdStorageError, match="under a hold"):
        store.delete("abc")
    assert [info.key for info in store.list("")] == ["a"]


def test_an_upload_through_a_driver_that_damages_it_fails(other, monkeypatch):
    def damage(self, local, path, **kwargs):
        self.pipe_file(path, b"abX")

    monkeypatch.setattr(OtherFileSystem, "put_file", damage)
    with open_object_store(f"other://{uuid4().hex}").upload("key") as upload:
        upload.write(b"abc")
        with pytest.raises(ColdStorageError, match="arrived damaged"):
            upload.commit()
