"""The options of an object store beside its URL: one value that every backend takes and that can be pickled."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from ...errors import ConfigError

PART_BYTES_MIN = 5 << 20  # S3 refuses smaller parts, the last one excepted
PART_BYTES_MAX = 5 << 30
PARTS_MAX = 10_000  # of one upload to S3
TAGS_MAX = 10
BYTES_PER_SECOND_MIN = 4 << 10
NO_ADDRESS = "is not the address of a server; write one such as http://127.0.0.1:9000 or https://host"
SET_KEYS = (
    "set AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or your cloud's like, in the environment"
)
_NO_OBJECT_STORES = {"http", "https", "data", "zip", "tar", "git", "github", "reference"}
URLS = "write s3://bucket/prefix, file:///absolute/directory, gs://bucket/prefix, abfs://container/prefix or memory://name"
FILE_RESERVED = ".tiered"
"""The directory of a `FileStore` below its root that holds no objects."""

_TAG = re.compile(r"[\w\s+\-=.:/@]*")  # what S3 allows in keys and values of tags


@dataclass(frozen=True, slots=True)
class ColdOptions:
    """The options of an object store.

    Without keys, S3 credentials come from botocore's search: the ``AWS_*`` environment, the shared config and
    credentials files, then the role of the container or instance. Other clouds use the search of their fsspec driver.
    ``endpoint_url``, ``region``, ``storage_class``, encryption, tags and the keys concern S3 alone.

    Attributes
    ----------
    endpoint_url
        URL of an S3-compatible server; ``None`` is AWS, or the value of ``AWS_ENDPOINT_URL``.
    storage_class
        For data objects. The head and the manifest's pages are small, read often and replaced, so they
        stay in the bucket's default class.
    encryption
        ``"AES256"`` (SSE-S3) or ``"aws:kms"`` (SSE-KMS) for every object that is written; a server that does not
        confirm it is refused. ``"off"`` leaves encryption to the bucket.
    kms_key_id
        Id, ARN or alias of the key for ``"aws:kms"``; ``None`` is the account's key for S3.
    tags
        Pairs of key and value for data objects, for lifecycle rules and bills. Objects of the manifest have none, so
        no rule by tag applies to them.
    read_back
        Whether each data object is read again and compared after its upload.
    conditional_writes
        ``"off"`` checks the condition of a `put` by reading first. That is safe with exactly one tierer only; it is
        meant for backends without compare-and-swap.
    access_key, secret_key, session_token
        Explicit credentials; never shown by ``repr``. A pickled store carries them.
    attempts
        Requests for one call, including the first, before a transient failure is raised.
    connect_timeout_seconds, read_timeout_seconds
        For one attempt: the time to connect, and then the time to send and to wait for the answer, for each step and
        in all. Against an endpoint that never answers, a call takes at most about ``attempts`` times their sum,
        plus ``2 ** attempts`` seconds of backoff. A ``credential_process`` of the shared config is killed after twice
        the read timeout.
    bytes_per_second_min
        The slowest transfer that is accepted: every so many bytes, in either direction, extend an attempt by a second.
        A slower attempt times out. S3 alone.
    part_bytes
        Uploads up to this size are one PUT; larger ones are sent in parts of this size.
    upload_threads
        Parts of one upload that are sent at a time; an upload holds at most one more part in memory.
    read_threads
        Ranges that are fetched at a time, over all calls of one store.
    upload_bytes_per_second, requests_per_second
        Limits over all threads of the process; ``None`` is no limit. Ranged reads do not count as requests.
    """

    endpoint_url: str | None = None
    region: str | None = None
    storage_class: str = "STANDARD"
    encryption: Literal["off", "AES256", "aws:kms"] = "off"
    kms_key_id: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    read_back: bool = False
    conditional_writes: Literal["on", "off"] = "on"
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    attempts: int = 4
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 30.0
    bytes_per_second_min: float = BYTES_PER_SECOND_MIN
    part_bytes: int = 8 << 20
    upload_threads: int = 4
    read_threads: int = 8
    upload_bytes_per_second: float | None = None
    requests_per_second: float | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises
        ------
        ConfigError
            A value is not usable; the message names the option and what to write.
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
            "bytes_per_second_min",
            "upload_threads",
            "read_threads",
            "upload_bytes_per_second",
            "requests_per_second",
        ):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} must be more than zero, not {value}")
        if not PART_BYTES_MIN <= self.part_bytes <= PART_BYTES_MAX:
            raise ConfigError(f"part_bytes is between {PART_BYTES_MIN} (5 MiB) and {PART_BYTES_MAX} (5 GiB)")
        check_encryption(self.encryption, self.kms_key_id)
        check_tags(self.tags)
        fault = None if self.endpoint_url is None else endpoint_fault(self.endpoint_url)
        if fault is not None:
            raise ConfigError(f"cold.endpoint_url {fault}")

    def for_a_look(self) -> ColdOptions:
        """Return the options of a user who waits for a view: a silent endpoint ends a call in some 20 s, and not in 120."""
        return replace(
            self,
            attempts=min(2, self.attempts),
            read_timeout_seconds=min(10.0, self.read_timeout_seconds),
        )


def check_url(url: str) -> None:
    """Raise `ConfigError` for a string that is not the URL of an object store, or that seems to contain a secret.

    The message does not repeat a secret. Secrets of AWS may contain slashes; a signed URL has its signature in the query.
    """
    scheme, separator, rest = url.partition("://")
    if "\0" in url:
        raise ConfigError("the URL holds a NUL character, which no store can have; take it out")
    if not separator or not scheme:
        shown = "what is given" if "@" in url or "?" in url else repr(url)
        raise ConfigError(f"{shown} is not the URL of an object store; {URLS}")
    scheme, s3 = scheme.lower(), scheme.lower() in ("s3", "s3a")
    first, _, after = rest.partition("/")
    user, _, _ = first.rpartition("@")
    name, colon, word = first.partition(":")
    # A host may have a port, but not in S3; the ARN of an access point has colons.
    slashed = colon and "@" in after and (name != "arn" if s3 else not word.isdecimal())
    if ":" in user or (user and s3) or slashed:
        raise ConfigError(
            f"the {scheme}:// URL must not hold a password or a user; take them out and {SET_KEYS}"
        )
    if ("?" in rest and scheme not in ("file", "memory")) or ("#" in rest and s3):
        raise ConfigError(
            f"the {scheme}:// URL must not hold ? or #; write settings under [cold], and for credentials {SET_KEYS}"
        )
    if scheme in _NO_OBJECT_STORES:
        raise ConfigError(f"{url!r}: {scheme} is no object store; {URLS}")
    if any(part in (".", "..") for part in rest.split("/")):
        raise ConfigError(f"{url!r} holds a dot name; write the directory it stands for")
    if s3:
        _check_prefix(url, rest)
    elif scheme == "file":
        _check_directory(url, Path(rest))
    elif not rest.strip("/"):
        raise ConfigError(f"{url!r} names no bucket; {URLS}")


def _check_prefix(url: str, rest: str) -> None:
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise ConfigError(f"{url!r} names no bucket; write s3://bucket/prefix")
    if "//" in prefix.strip("/"):
        raise ConfigError(f"{url!r}: the prefix holds an empty name; write one slash")


def _check_directory(url: str, path: Path) -> None:
    if not path.is_absolute() or not path.name:
        raise ConfigError(f"{url!r} names no absolute directory; write file:///absolute/directory")
    if FILE_RESERVED in path.parts:
        raise ConfigError(f"{url!r}: the name {FILE_RESERVED} is reserved")


def check_encryption(encryption: str, kms_key_id: str | None) -> None:
    """Raise `ConfigError` for an unknown kind of encryption, and for a key without effect."""
    if encryption not in ("off", "AES256", "aws:kms"):
        raise ConfigError(f'cold.encryption is "off", "AES256" or "aws:kms", not {encryption!r}')
    if kms_key_id is not None and encryption != "aws:kms":
        raise ConfigError('cold.kms_key_id needs cold.encryption = "aws:kms"; write it, or leave the key out')
    if kms_key_id is not None and not kms_key_id.strip():
        raise ConfigError("cold.kms_key_id is empty; leave it out for the account's own key")


def check_tags(tags: tuple[tuple[str, str], ...]) -> None:
    """Raise `ConfigError` for tags that S3 would refuse."""
    if len(tags) > TAGS_MAX:
        raise ConfigError(f"an object has at most {TAGS_MAX} tags, cold.tags has {len(tags)}")
    for key, value in tags:
        if not 1 <= len(key) <= 128 or len(value) > 256:
            raise ConfigError(
                f"cold.tags: {key!r}: a name has 1 to 128 characters, and its value at most 256; write one that fits"
            )
        if key.lower().startswith("aws:"):
            raise ConfigError(f"cold.tags: {key!r} begins with aws:, which is reserved; write another key")
        if not (_TAG.fullmatch(key) and _TAG.fullmatch(value)):
            raise ConfigError(
                f"cold.tags: {key} = {value!r} holds what S3 refuses; write letters, digits, spaces and + - = . _ : / @"
            )


def endpoint_fault(url: str) -> str | None:
    """Return why a server's URL is not usable, or that it contains a secret, without repeating it; None if it is valid."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        return NO_ADDRESS
    if parts.username is not None or parts.query or parts.fragment:
        return f"must not hold credentials, ? or #; take them out and {SET_KEYS}"
    return None
