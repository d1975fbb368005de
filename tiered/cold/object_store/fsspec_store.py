"""The object store on what fsspec has a driver for: ``memory://``, ``gs://``, ``abfs://`` and others.

fsspec knows no conditional write. In memory one lock for the process makes it whole; elsewhere a `put`
with a condition is refused, or, by the user's word that there is exactly one tierer
(``conditional_writes = "off"``), checked by reading first.
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
from types import TracebackType
from typing import Any, Self

import fsspec

from ...errors import ColdStorageError, ConfigError, ObjectNotFound
from ...format.checksum import crc32c
from .keys import Children, check_conditions, check_key, check_prefix, check_range, inhabited, require, walk
from .options import ColdOptions
from .os_errors import translated
from .protocol import Bytes, ObjectInfo, Upload, Versioned
from .second_look import LOOKS
from .throttle import Brakes

_MEMORY = threading.RLock()  # guards the files that all stores in memory of a process share
_READ_BYTES = 8 << 20
_MODIFIED = ("last_modified", "LastModified", "updated", "mtime", "modified", "created")


class FsspecStore:
    """See `ObjectStore`.

    The ETag of `get` and `put`, which conditions compare, is a hash of the content. `stat` and `list` give
    the same one in memory, elsewhere the driver's own, which is not for conditions.

    A missing bucket looks like a missing object in most drivers.

    Parameters
    ----------
    url
        As the user wrote it. Nothing is opened before the first call; ``memory://`` is empty in
        another process.
    """

    def __init__(self, url: str, options: ColdOptions | None = None) -> None:
        self._url = url.rstrip("/")
        self._options = options or ColdOptions()
        self._by_process: dict[int, tuple[Any, str]] = {}
        self._in_memory = url.startswith("memory:")
        # Where conditions are checked by reading: two threads of the one tierer.
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
        wanted = list(ranges)
        for start, length in wanted:
            check_range(start, length)
        asked = [(start, length) for start, length in wanted if length]
        starts, ends = [start for start, _ in asked], [start + length for start, length in asked]
        answers: list[bytes] = []
        with self.doing("get", key):
            if asked:
                for answer in self.fs.cat_ranges([path] * len(asked), starts, ends):
                    if isinstance(answer, BaseException):
                        raise answer
                    answers.append(bytes(answer))
        for (start, length), data in zip(asked, answers, strict=True):
            if len(data) != length:
                raise ColdStorageError(
                    f"cannot get {self._url}/{key}: asked for {length} bytes at {start}, got {len(data)}; "
                    "the object is shorter than expected"
                )
        found = iter(answers)
        return [next(found) if length else b"" for _, length in wanted]

    def put(self, key: str, data: Bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        """See `ObjectStore.put`.

        Raises
        ------
        ConfigError
            A condition, on a backend that cannot keep it, without ``conditional_writes = "off"``.
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
                require(f"{self._url}/{key}", self.current(key), if_match, if_none_match)
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
        return inhabited(check_prefix(prefix), self._children)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        return walk(check_prefix(prefix), self._children)

    def delete(self, keys: Iterable[str]) -> None:
        """See `ObjectStore.delete`; one that may not be deleted holds up no other."""
        kept: list[ColdStorageError] = []
        for key in dict.fromkeys(keys):
            try:
                with self.doing("delete", check_key(key)):
                    self.fs.rm_file(self.path(key))
            except ColdStorageError as error:
                if error.retryable:
                    raise
                if not isinstance(error.__cause__, (FileNotFoundError, KeyError)):
                    kept.append(error)
        if kept:
            raise kept[0]

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
            with translated("open", "", self._url):
                fs, root = fsspec.core.url_to_fs(
                    self._url,
                    use_listings_cache=False,
                    skip_instance_cache=True,
                    **storage_options(self._url, self._options),
                )
            if "s3" in fs.protocol:
                fs.retries = 1  # besides the SDK's, which are ours
            self._by_process.setdefault(process, (fs, root.rstrip("/")))
        return self._by_process[process]

    @property
    def brakes(self) -> Brakes:
        options = self._options
        return Brakes.shared(self._url, options.upload_bytes_per_second, options.requests_per_second)

    @contextmanager
    def doing(self, operation: str, key: str) -> Iterator[None]:
        self.brakes.before_request(free=operation == "get")
        with _MEMORY if self._in_memory else nullcontext(), translated(operation, key, self._url):
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
                found = self.fs.ls(folder, detail=True)
            except FileNotFoundError:
                return children
            for info in found:
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
    """Return what an fsspec driver is to be given, so that it reaches the bucket as this package does.

    For ``s3://`` that is s3fs, with the endpoint, region, credentials, timeouts and attempts of `options`; without
    keys its chain is botocore's, as ours is. Other drivers have their own chains and are given nothing.
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


class _SpooledUpload:
    """See `Upload`: drivers differ in what a half-written object shows, a local file does not."""

    def __init__(self, store: FsspecStore, key: str) -> None:
        self._store = store
        self._key = key
        self._crc = 0
        self._size = 0
        self._ended = False
        with translated("upload", key, store.url):
            self._spool = tempfile.NamedTemporaryFile(prefix="tiered-upload-")  # noqa: SIM115 - open until abort

    def write(self, data: Bytes) -> int:
        """See `Upload.write`."""
        self._check_open()
        # Not when the driver sends: nobody can look into that.
        self._store.brakes.before_bytes(memoryview(data).nbytes)
        with translated("upload", self._key, self._store.url):
            written = self._spool.write(data)
        self._crc = crc32c(data, self._crc)
        self._size += written
        return written

    def commit(self) -> ObjectInfo:
        """See `Upload.commit`; where the driver reports no CRC32C the object is read again."""
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
        # It writes what is left in its buffer, for which the disk may have no room; nobody wants it any more.
        with suppress(OSError):
            self._spool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _publish(self) -> None:
        path = self._store.path(self._key)
        if self._store.conditional_writes:
            require(f"{self._store.url}/{self._key}", self._store.current(self._key), None, True)
            self._spool.seek(0)
            # Put in at once; put_file would show a growing object.
            self._store.fs.pipe_file(path, self._spool.read())
        else:
            self._store.fs.put_file(self._spool.name, path)
        self._store.fs.invalidate_cache()

    def _arrived(self) -> bool:
        with self._store.doing("upload", self._key):
            reported = self._store.info(self._key).get("crc32c")
        if reported:
            return bool(reported == base64.b64encode(self._crc.to_bytes(4, "big")).decode())
        # Once more where it is not: the answer may have been changed on its way.
        return any(self._reads_back() for _ in range(LOOKS))

    def _reads_back(self) -> bool:
        crc = 0
        for start in range(0, self._size, _READ_BYTES):
            piece = self._store.get_range(self._key, start, min(_READ_BYTES, self._size - start))
            crc = crc32c(piece, crc)
        return crc == self._crc

    def _check_open(self) -> None:
        if self._ended:
            raise ValueError(f"the upload of {self._key} has ended")


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _modified_seconds(info: Any, where: str) -> float:
    """Return when the object was written; drivers name it differently and give it in three types."""
    for name in _MODIFIED:
        value = info.get(name)
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    # A guess would let the sweep take a new object for an old one.
    raise ColdStorageError(f"{where}: this driver does not say when an object was written")
