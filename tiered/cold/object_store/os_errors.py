"""The translation of errors of the operating system and of fsspec's drivers into `ColdStorageError`."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import (
    Backpressure,
    ColdStorageError,
    DiskFull,
    ObjectNotFound,
    ReadOnly,
    StoreLocked,
    TieredError,
)

_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_READS = {"get", "stat"}
_DISK_ERRORS = (Backpressure, DiskFull, ReadOnly, StoreLocked)
_TRANSIENT = (Backpressure, DiskFull, StoreLocked, TimeoutError, ConnectionError)
_TRANSIENT_ERRNOS = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.EDQUOT,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOSPC,
    errno.ENOTEMPTY,
    errno.ETIMEDOUT,
}


@contextmanager
def translating(
    operation: str, key: str, url: str, kinds: tuple[type[Exception], ...] = (Exception,)
) -> Iterator[None]:
    """Translate errors of `kinds` that the block raises; errors that callers of an object store expect pass through."""
    try:
        yield
    except ColdStorageError:
        raise
    except kinds as error:
        if isinstance(error, TieredError) and not isinstance(error, _DISK_ERRORS):
            raise
        raise translate(error, operation, key, url) from error


def translate(error: BaseException, operation: str, key: str, url: str) -> ColdStorageError:
    """Return the error for a caller of the object store; see `s3_errors.translate`."""
    s3_error = _s3_error_in(error, operation, key, url)
    if s3_error is not None:
        return s3_error
    subject = f"cannot {operation} {url}/{key}".rstrip("/")
    text = " ".join((str(error) or type(error).__name__).split())
    status = _status(error)
    if isinstance(error, _ABSENT) and operation in _READS:
        return ObjectNotFound(f"{subject}: there is no such object")
    if isinstance(error, PermissionError) or status in (401, 403):
        return ColdStorageError(
            f"{subject}: {text}; check the permissions, or the credentials of this driver"
        )
    if isinstance(error, _TRANSIENT) or status in (408, 429):
        return ColdStorageError(f"{subject}: {text}", retryable=True)
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNOS:
        return ColdStorageError(f"{subject}: {text}", retryable=True)
    return ColdStorageError(f"{subject}: {text}", retryable=status >= 500)


def _s3_error_in(error: BaseException | None, operation: str, key: str, url: str) -> ColdStorageError | None:
    """Return the translated answer of S3 behind an error of s3fs, if there is one: it is more precise."""
    if "botocore.exceptions" not in sys.modules:
        return None
    from botocore.exceptions import BotoCoreError, ClientError

    from .s3_errors import translate

    for _ in range(8):
        if error is None:
            break
        if isinstance(error, (ClientError, BotoCoreError)):
            return translate(error, operation, key, url)
        error = error.__cause__ or error.__context__
    return None


def _status(error: BaseException) -> int:
    """Return the HTTP status, which drivers keep under one of two names; 0 if there is none."""
    for name in ("status_code", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int):
            return value
    return 0
