"""The choice of an object store's backend by its URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigError
from .file_store import FileStore
from .options import URLS, ColdOptions, check_url
from .protocol import ObjectStore

# botocore and fsspec take a quarter of the time of `import tiered`, so each is imported only when a URL needs it.
if TYPE_CHECKING:
    from .s3_store import S3Store

__all__ = ["ColdOptions", "open_object_store"]

_DRIVERS = {"gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}


def open_object_store(url: str, options: ColdOptions | None = None) -> ObjectStore:
    """Return the object store at `url`; it contacts no server before its first call.

    Parameters
    ----------
    url
        ``s3://bucket/prefix`` (``s3a://`` is the same), ``file:///absolute/directory``, ``memory://name``, or
        any URL that fsspec has a driver for. It is taken literally: ``%20`` is three characters.
    options
        Credentials, timeouts and limits.

    Raises
    ------
    ConfigError
        The URL is not valid, or its driver is not installed; the message says what to write or to install.
    """
    options = options or ColdOptions()
    check_url(url)
    scheme, _, rest = url.partition("://")
    if scheme in ("s3", "s3a"):
        return _open_s3(rest, options)
    _check_s3_alone(scheme, options)
    if scheme == "file":
        return FileStore(Path(rest), options)
    _check_driver(scheme)
    from .fsspec_store import FsspecStore

    return FsspecStore(url, options)


def _open_s3(rest: str, options: ColdOptions) -> S3Store:
    bucket, _, prefix = rest.partition("/")
    from .s3_store import S3Store

    return S3Store(bucket, prefix.strip("/"), options)


def _check_s3_alone(scheme: str, options: ColdOptions) -> None:
    """Raise `ConfigError` for S3 settings that other backends would silently ignore."""
    for name, value, off in (("encryption", options.encryption, "off"), ("tags", options.tags, ())):
        if value != off:
            raise ConfigError(
                f"cold.{name} is for s3:// alone, not for {scheme}://; leave it out and set its equivalent on the bucket"
            )


def _check_driver(scheme: str) -> None:
    import fsspec

    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        package = _DRIVERS.get(scheme)
        install = f"pip install {package}" if package else str(error)
        raise ConfigError(f"{scheme}:// needs a driver that is not installed: {install}") from error
    except ValueError as error:
        raise ConfigError(f"nothing is known of {scheme}://; {URLS}") from error
