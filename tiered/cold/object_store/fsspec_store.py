"""An object store on a driver of fsspec: ``memory://``, ``gs://``, ``abfs://`` and others.

fsspec has no conditional writes. In memory, one lock for the process makes them atomic. Elsewhere a conditional `put` is
refused, unless the user sets ``conditional_writes = "off"`` and so promises exactly one tierer: then the condition is
checked by reading first.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any

import fsspec

from ...errors import ColdStorageError, ConfigError, ObjectNotFound
from ...format.checksum import crc32c
from .keys import (
    Children,
    check_conditions,
    check_key,
    check_precondition,
    check_prefix,
    check_range,
    nonempty_folders,
    walk,
)
from .options import ColdOptions
from .os_errors import translating
from .protocol import Bytes, ObjectInfo, Upload, Versioned
from .rereads import READS_MAX
from .throttle import Throttle

_MEMORY = threading.RLock()  # guards the files of ``memory://``, which all stores of a process share
_READ_BYTES = 8 << 20
_MODIFIED = ("last_modified", "LastModified", "updated", "mtime", "modified", "created")


class FsspecStore:
    """See `ObjectStore`.

    The ETag of `get` and `put` is a hash of the content; conditions compare it. `stat` and `list` return the same ETag in
    memory, and the driver's own elsewhere, which conditions cannot use.

    Most drivers report a missing bucket as a missing object.

    Parameters
    ----------
    url
        As the user wrote it. The first call opens it; ``memory://`` is empty in another process.
    """

    def __init__(self, url: str, options: ColdOptions | None = None) -> None:
        self._url = url.rstrip("/")
        self._options = options or ColdOptions()
        self._by_process: dict[int, tuple[Any, str]] = {}
        self._in_memory = url.startswith("memory:")
        # Serializes threads whose conditions are checked by reading first.
        self._reading_first = _MEMORY if self._in_memory else threading.RLock()

    def __reduce__(self) -> tuple[object, ...]:
        return FsspecStore, (self._url, self._options)

    def __repr__(self) -> str:
        return f"FsspecStore({self._url!r})"

    @property
    def url(self) -> str:
        """The URL it was opened with."""
        return self._url

    @property
    def conditional_writes(self) -> bool:
        """True in memory; elsewhere fsspec has no compare-and-swap."""
        return self._in_memory

    def get(self, key: str) -> Versioned:
        """See `ObjectStore.get`."""
        with self.doing("get", check_key(key)):
            data = bytes(self.fs.cat_file(self.path(key)))
        return Versioned(data, _hash(data))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        return self.get_ranges(key, [(start, length)])[0]

    def get_ranges(self, key: str, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """See `ObjectStore.get_ranges`; concurrent where the driver is."""
        path = self.path(check_key(key))
        spans = list(ranges)
        for start, length in spans:
            check_range(start, length)
        nonempty = [(start, length) for start, length in spans if length]
        starts, ends = [start for start, _ in nonempty], [start + length for start, length in nonempty]
        answers: list[bytes] = []
        with self.doing("get", key):
            if nonempty:
                for answer in self.fs.cat_ranges([path] * len(nonempty), starts, ends):
                    if isinstance(answer, BaseException):
                        raise answer
                    answers.append(bytes(answer))
        for (start, length), data in zip(nonempty, answers, strict=True):
            if len(data) != length:
                raise ColdStorageError(
                    f"cannot get {self._url}/{key}: {length} bytes at {start} were requested, got {len(data)}; "
                    "the object is shorter than expected"
                )
        remaining = iter(answers)
        return [next(remaining) if length else b"" for _, length in spans]

    def put(self, key: str, data: Bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        """See `ObjectStore.put`.

        Raises
        ------
        ConfigError
            A condition, on a backend without compare-and-swap and without ``conditional_writes = "off"``.
        """
        check_key(key)
        body = bytes(data)
        if check_conditions(if_match, if_none_match):
            if not self._in_memory and self._options.conditional_writes == "on":
                raise ConfigError(
                    f"{self._url} has no compare-and-swap through fsspec, so it cannot be written safely by two; "
                    'set cold.conditional_writes = "off" and run exactly one tierer, or use s3:// or file://'
                )
            with self._reading_first:
                check_precondition(f"{self._url}/{key}", self.current(key), if_match, if_none_match)
                self._write(key, body)
        else:
            self._write(key, body)
        return _hash(body)

    def upload(self, key: str) -> Upload:
        """See `ObjectStore.upload`; the bytes wait in a local temporary file until `Upload.commit`."""
        return _SpooledUpload(self, check_key(key))

    def stat(self, key: str) -> ObjectInfo:
        """See `ObjectStore.stat`."""
        with self.doing("stat", check_key(key)):
            return self._object(key, self.info(key))

    def folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.folders`."""
        return nonempty_folders(check_prefix(prefix), self._children)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        return walk(check_prefix(prefix), self._children)

    def delete(self, keys: Iterable[str]) -> None:
        """See `ObjectStore.delete`; an object that may not be deleted does not stop the others."""
        refusals: list[ColdStorageError] = []
        for key in dict.fromkeys(keys):
            try:
                with self.doing("delete", check_key(key)):
                    self.fs.rm_file(self.path(key))
            except ColdStorageError as error:
                if error.retryable:
                    raise
                if not isinstance(error.__cause__, (FileNotFoundError, KeyError)):
                    refusals.append(error)
        if refusals:
            raise refusals[0]

    def close(self) -> None:
        """Drop this process's driver."""
        self._by_process.pop(os.getpid(), None)

    @property
    def fs(self) -> Any:
        return self._connected()[0]

    def path(self, key: str) -> str:
        root = self._connected()[1]
        return f"{root}/{key}" if root or self._in_memory else key

    def _connected(self) -> tuple[Any, str]:
        process = os.getpid()  # the drivers' event loops do not survive a fork
        if process not in self._by_process:
            with translating("open", "", self._url):
                fs, root = fsspec.core.url_to_fs(
                    self._url,
                    use_listings_cache=False,
                    skip_instance_cache=True,
                    **storage_options(self._url, self._options),
                )
            if "s3" in fs.protocol:
                fs.retries = 1  # the SDK retries already
            self._by_process.setdefault(process, (fs, root.rstrip("/")))
        return self._by_process[process]

    @property
    def throttle(self) -> Throttle:
        options = self._options
        return Throttle.shared(self._url, options.upload_bytes_per_second, options.requests_per_second)

    @contextmanager
    def doing(self, operation: str, key: str) -> Iterator[None]:
        self.throttle.before_request(free=operation == "get")
        with _MEMORY if self._in_memory else nullcontext(), translating(operation, key, self._url):
            yield

    def current(self, key: str) -> str | None:
        try:
            return self.get(key).etag
        except ObjectNotFound:
            return None

    def _write(self, key: str, body: bytes) -> None:
        with self.doing("put", key):
            self.fs.pipe_file(self.path(key), body)
            self.fs.invalidate_cache()

    def info(self, key: str) -> Any:
        self.fs.invalidate_cache()
        info = self.fs.info(self.path(key))
        if info["type"] != "file":
            raise FileNotFoundError(key)
        return info

    def _object(self, key: str, info: Any) -> ObjectInfo:
        if self._in_memory:
            etag = _hash(self.fs.cat_file(self.path(key)))
        else:
            etag = str(info.get("etag") or info.get("ETag") or info.get("generation") or "")
        return ObjectInfo(key, int(info["size"]), etag, _modified_seconds(info, f"{self._url}/{key}"))

    def _children(self, prefix: str) -> Children:
        folder = self.path(prefix[:-1]) if prefix else self._connected()[1]
        children: Children = []
        with self.doing("list", prefix):
            self.fs.invalidate_cache()
            try:
                infos = self.fs.ls(folder, detail=True)
            except FileNotFoundError:
                return children
            for info in infos:
                # Some drivers list the folder itself, as an empty object.
                path = info["name"].rstrip("/")
                name = path.rpartition("/")[2]
                if path.strip("/") == folder.strip("/"):
                    continue
                children.append(
                    (name, None if info["type"] == "directory" else self._object(prefix + name, info))
                )
        return children


def storage_options(url: str, options: ColdOptions) -> dict[str, Any]:
    """Return the options with which an fsspec driver reaches the bucket as this package does.

    For ``s3://`` the driver is s3fs: it gets the endpoint, region, credentials, timeouts and attempts of `options`.
    Without keys it searches for credentials as this package does, since both use botocore. Other drivers have their own
    search and get no options.
    """
    if url.partition("://")[0] not in ("s3", "s3a"):
        return {}
    client = {"endpoint_url": options.endpoint_url, "region_name": options.region}
    return {
        "key": options.access_key,
        "secret": options.secret_key,
        "token": options.session_token,
        "client_kwargs": {name: value for name, value in client.items() if value is not None},
        "config_kwargs": {
            "retries": {"mode": "standard", "total_max_attempts": options.attempts},
            "connect_timeout": options.connect_timeout_seconds,
            "read_timeout": options.read_timeout_seconds,
        },
    }


class _SpooledUpload(Upload):
    """See `Upload`. The bytes go to a local file first, since drivers differ in how a half-written object shows."""

    def __init__(self, store: FsspecStore, key: str) -> None:
        self._store = store
        self._key = key
        self._crc = 0
        self._size = 0
        self._ended = False
        with translating("upload", key, store.url):
            self._spool = tempfile.NamedTemporaryFile(prefix="tiered-upload-")  # noqa: SIM115 - open until abort

    def write(self, data: Bytes) -> int:
        """See `Upload.write`."""
        self._check_open()
        # Here rather than while the driver sends, which cannot be throttled.
        self._store.throttle.before_bytes(memoryview(data).nbytes)
        with translating("upload", self._key, self._store.url):
            written = self._spool.write(data)
        self._crc = crc32c(data, self._crc)
        self._size += written
        return written

    def commit(self) -> ObjectInfo:
        """See `Upload.commit`; the object is read again if the driver reports no CRC32C."""
        self._check_open()
        try:
            with self._store.doing("upload", self._key):
                self._spool.flush()
                self._publish()
            info = self._store.stat(self._key)
            if info.size != self._size or not self._arrived():
                raise ColdStorageError(
                    f"{self._store.url}/{self._key} arrived damaged; upload it again", retryable=True
                )
            return info
        finally:
            self.abort()

    def abort(self) -> None:
        """See `Upload.abort`; may be called twice, and after `commit`."""
        self._ended = True
        # Closing writes the rest of the buffer, which a full disk refuses; those bytes are not needed any more.
        with suppress(OSError):
            self._spool.close()

    def _publish(self) -> None:
        path = self._store.path(self._key)
        if self._store.conditional_writes:
            check_precondition(f"{self._store.url}/{self._key}", self._store.current(self._key), None, True)
            self._spool.seek(0)
            # In one step; put_file would show a growing object.
            self._store.fs.pipe_file(path, self._spool.read())
        else:
            self._store.fs.put_file(self._spool.name, path)
        self._store.fs.invalidate_cache()

    def _arrived(self) -> bool:
        with self._store.doing("upload", self._key):
            reported = self._store.info(self._key).get("crc32c")
        if reported:
            return bool(reported == base64.b64encode(self._crc.to_bytes(4, "big")).decode())
        # A mismatch is read again: the answer may have been damaged on its way.
        return any(self._reads_back() for _ in range(READS_MAX))

    def _reads_back(self) -> bool:
        crc = 0
        for start in range(0, self._size, _READ_BYTES):
            data = self._store.get_range(self._key, start, min(_READ_BYTES, self._size - start))
            crc = crc32c(data, crc)
        return crc == self._crc

    def _check_open(self) -> None:
        if self._ended:
            raise ValueError(f"the upload of {self._key} has ended")


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _modified_seconds(info: Any, where: str) -> float:
    """Return when the object was written; drivers use different names and three types for it."""
    for name in _MODIFIED:
        value = info.get(name)
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    # Without a time the sweep could take a new object for an old one.
    raise ColdStorageError(f"{where}: this driver does not report when an object was written")
