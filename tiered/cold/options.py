"""How to reach a bucket, apart from its URL: one value that every backend takes and that pickles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from ..errors import ConfigError

PART_BYTES_MIN = 5 << 20  # S3 refuses smaller parts, the last one excepted
PART_BYTES_MAX = 5 << 30


@dataclass(frozen=True, slots=True)
class ColdOptions:
    """Settings of an object store.

    Without keys, S3 credentials come from botocore's chain: the ``AWS_*`` environment, the shared config
    and credentials files, then the role of the container or instance. Other clouds use the chain of
    their fsspec driver; ``endpoint_url``, ``region``, ``storage_class`` and the keys concern S3 alone.

    Attributes
    ----------
    endpoint_url
        Of an S3-compatible server; ``None`` is AWS, or what ``AWS_ENDPOINT_URL`` says.
    storage_class
        For data objects. The head and the manifest's pages are small, read often and replaced, so they
        stay in the bucket's default class.
    conditional_writes
        ``"off"`` checks the condition of a `put` by reading first. That is safe with exactly one tierer
        and no more; it is for backends that have no compare-and-swap.
    access_key, secret_key, session_token
        Explicit credentials; never shown by ``repr``. A pickled store carries them.
    attempts
        Requests made for one call, the first included, before a transient failure is raised.
    connect_timeout_seconds, read_timeout_seconds
        For one attempt. Against an endpoint that never answers, a call takes at most about
        ``attempts`` times their sum, and ``2 ** attempts`` seconds of backoff.
    part_bytes
        Uploads up to this size are one PUT, larger ones are sent in parts of this size.
    upload_threads
        Parts of one upload that are under way at a time; it holds at most one part more in memory.
    read_threads
        Ranges that are fetched at a time, over all calls of one store.
    """

    endpoint_url: str | None = None
    region: str | None = None
    storage_class: str = "STANDARD"
    conditional_writes: Literal["on", "off"] = "on"
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    attempts: int = 4
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 30.0
    part_bytes: int = 8 << 20
    upload_threads: int = 4
    read_threads: int = 8

    def __post_init__(self) -> None:
        """Refuse what no backend could use.

        Raises
        ------
        ConfigError
            Names the option and what to write.
        """
        if self.conditional_writes not in ("on", "off"):
            raise ConfigError(f'cold.conditional_writes is "on" or "off", not {self.conditional_writes!r}')
        if (self.access_key is None) != (self.secret_key is None):
            raise ConfigError("an access key and its secret key are given together, or neither is")
        if self.session_token is not None and self.access_key is None:
            raise ConfigError("a session token needs the access key and secret key it was issued with")
        for name in (
            "attempts",
            "connect_timeout_seconds",
            "read_timeout_seconds",
            "upload_threads",
            "read_threads",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be more than zero, not {getattr(self, name)}")
        if not PART_BYTES_MIN <= self.part_bytes <= PART_BYTES_MAX:
            raise ConfigError(f"part_bytes is between {PART_BYTES_MIN} (5 MiB) and {PART_BYTES_MAX} (5 GiB)")
        if self.endpoint_url is not None:
            _check_endpoint(self.endpoint_url)


def _check_endpoint(endpoint_url: str) -> None:
    parts = urlsplit(endpoint_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"cold.endpoint_url {endpoint_url!r} is not an address; write http://host:port or https://host"
        )
    if parts.username is not None or parts.password is not None:
        raise ConfigError("cold.endpoint_url must not hold credentials; set the AWS_* environment instead")
