"""What the operating system and fsspec's drivers raise, as a `ColdStorageError` that says what to do."""

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
_OF_THE_DISK = (Backpressure, DiskFull, ReadOnly, StoreLocked)
_WAITED_OUT = (Backpressure, DiskFull, StoreLocked, TimeoutError, ConnectionError)
_PASSING = {
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
def translated(
    operation: str, key: str, url: str, kinds: tuple[type[Exception], ...] = (Exception,)
) -> Iterator[None]:
    """Translate errors of `kinds`; those that callers of an object store know pass through."""
    try:
        yield
    except ColdStorageError:
        raise
    except kinds as error:
        if isinstance(error, TieredError) and not isinstance(error, _OF_THE_DISK):
            raise
        raise translate(error, operation, key, url) from error


def translate(error: BaseException, operation: str, key: str, url: str) -> ColdStorageError:
    """Return what `error` means to a caller of the object store; see `s3_errors.translate`."""
    said = _said_by_s3(error, operation, key, url)
    if said is not None:
        return said
    subject = f"cannot {operation} {url}/{key}".rstrip("/")
    text = " ".join((str(error) or type(error).__name__).split())
    status = _status(error)
    if isinstance(error, _ABSENT) and operation in _READS:
        return ObjectNotFound(f"{subject}: there is no such object")
    if isinstance(error, PermissionError) or status in (401, 403):
        return ColdStorageError(
            f"{subject}: {text}; check the permissions, or the credentials of this driver"
        )
    if isinstance(error, _WAITED_OUT) or status in (408, 429):
        return ColdStorageError(f"{subject}: {text}", retryable=True)
    if isinstance(error, OSError) and error.errno in _PASSING:
        return ColdStorageError(f"{subject}: {text}", retryable=True)
    return ColdStorageError(f"{subject}: {text}", retryable=status >= 500)


def _said_by_s3(error: BaseException | None, operation: str, key: str, url: str) -> ColdStorageError | None:
    """Return the answer of S3 that s3fs made an error of the operating system of: it says more, and for certain."""
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
    """Return the HTTP status that drivers keep under one of two names, 0 where there is none."""
    for name in ("status_code", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int):
            return value
    return 0
