"""An object store on S3 and S3-compatible servers."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

from botocore.exceptions import ClientError

from ...errors import ColdStorageError, ObjectNotFound, PreconditionFailed
from .keys import check_conditions, check_key, check_precondition, check_prefix, check_range, is_key
from .options import ColdOptions
from .protocol import (
    PROBE_PREFIX,
    Bytes,
    ObjectInfo,
    OldVersion,
    UnfinishedUpload,
    Upload,
    Versioned,
    VersionRule,
)
from .request_counters import BucketCounts
from .s3_client import S3Client, checksum, etag_of, whole_crc_of
from .s3_errors import is_denied, status_of, translate
from .s3_holds import error_of_held, hold_on
from .s3_lifecycle import error_of_expiring, version_rule
from .s3_upload import S3Upload

_DELETE_KEYS_MAX = 1000  # of one DeleteObjects request
_HELD = {"AccessDenied", "InvalidRequest"}  # a version that Object Lock holds: S3, and MinIO


class S3Store:
    """See `ObjectStore`. It can be used from several threads, after a fork and after unpickling.

    Parameters
    ----------
    bucket, prefix
        The prefix neither begins nor ends with a slash and may be empty.
    """

    def __init__(self, bucket: str, prefix: str = "", options: ColdOptions | None = None) -> None:
        self._options = options or ColdOptions()
        self._prefix = prefix
        self._client = S3Client(bucket, prefix, self._options)
        # Serializes threads whose conditions are checked by reading first.
        self._reading_first = threading.Lock()
        # Whether If-Match takes an ETag with its quotes; None while unknown.
        self._quotes: bool | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return S3Store, (self._client.bucket, self._prefix, self._options)

    def __repr__(self) -> str:
        return f"S3Store({self.url!r}, {self._options!r})"

    @property
    def url(self) -> str:
        """``s3://bucket/prefix``."""
        return self._client.url

    @property
    def conditional_writes(self) -> bool:
        """Whether the server checks the condition of `put`, atomically."""
        return self._options.conditional_writes == "on"

    @property
    def counts(self) -> BucketCounts:
        """Counts of this process's requests through this store so far."""
        return self._client.counters.counts

    def get(self, key: str) -> Versioned:
        """See `ObjectStore.get`.

        Raises
        ------
        CorruptionError
            In every attempt, the bytes did not match the CRC32C that the server stores.
        """
        check_key(key)
        with self._confirm_absence(key):
            return Versioned(*self._client.read(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        check_key(key)
        check_range(start, length)
        if length == 0:
            return b""
        with self._confirm_absence(key):
            return self._client.read(key, (start, length))[0]

    def get_ranges(self, key: str, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """See `ObjectStore.get_ranges`; the first failure cancels reads that have not begun."""
        wanted = list(ranges)
        if len(wanted) <= 1:
            return [self.get_range(key, start, length) for start, length in wanted]
        return list(self._client.pool.map(lambda span: self.get_range(key, *span), wanted))

    def put(self, key: str, data: Bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        """See `ObjectStore.put`.

        The SDK repeats a request whose answer was lost, so `PreconditionFailed` can follow the caller's own success:
        compare the content of the object before relying on it.
        """
        check_key(key)
        if not check_conditions(if_match, if_none_match):
            return self._put(key, data)
        if self.conditional_writes:
            return self._replace(key, data, if_match) if if_match else self._put(key, data, IfNoneMatch="*")
        with self._reading_first:
            try:
                etag: str | None = self.stat(key).etag
            except ObjectNotFound:
                etag = None
            check_precondition(f"{self.url}/{key}", etag, if_match, if_none_match)
            return self._put(key, data)

    def upload(self, key: str) -> Upload:
        """See `ObjectStore.upload`; an existing object is never replaced."""
        return S3Upload(self._client, check_key(key), exclusive=self.conditional_writes)

    def stat(self, key: str) -> ObjectInfo:
        """See `ObjectStore.stat`."""
        check_key(key)
        with self._confirm_absence(key):
            answer = self._client.head("stat", key)
        etag = etag_of(answer, f"{self.url}/{key}")
        modified = answer["LastModified"].timestamp()
        # Servers omit the standard class.
        storage_class = answer.get("StorageClass", "STANDARD")
        moved = "" if storage_class == self._options.storage_class else storage_class
        return ObjectInfo(key, answer["ContentLength"], etag, modified, whole_crc_of(answer), moved)

    def folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.folders`."""
        check_prefix(prefix)
        start = len(self._client.prefix + prefix)
        # A set, since some servers list a folder again on the next page.
        return sorted(
            {
                row["Prefix"][start:-1]
                for row in self._rows("folders", prefix, "CommonPrefixes", "Prefix", Delimiter="/")
            }
        )

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`; in pages of 1000."""
        return self._list(check_prefix(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        """See `ObjectStore.delete`; up to 1000 keys a request.

        Raises
        ------
        ColdStorageError
            Some of the keys could not be deleted; the others may have been.
        """
        wanted = [{"Key": self._client.prefix + key} for key in dict.fromkeys(map(check_key, keys))]
        self._raise_undeleted(self._delete("delete", wanted), "delete")

    def old_versions(self, prefix: str) -> Iterator[OldVersion]:
        """See `KeepsVersions.old_versions`; a server without this request keeps none."""
        check_prefix(prefix)
        try:
            yield from self._old_versions(prefix)
        except ColdStorageError as error:
            if status_of(error.__cause__) not in (405, 501):
                raise

    def delete_versions(self, versions: Iterable[OldVersion]) -> None:
        """See `KeepsVersions.delete_versions`."""
        wanted = list(versions)
        prefix = self._client.prefix
        undeleted = self._delete(
            "delete versions of",
            [{"Key": prefix + check_key(item.key), "VersionId": item.version_id} for item in wanted],
        )
        denied = {row.get("Key") for row in undeleted if row.get("Code") in _HELD}
        refused = [(item.key, item.version_id) for item in wanted if prefix + item.key in denied]
        if refused:
            held = error_of_held(self._client, refused) or error_of_expiring(self._client, refused)
            if held is not None:
                raise held
        self._raise_undeleted(undeleted, "delete versions of")

    def hold_on(self, key: str) -> str:
        """See `KeepsVersions.hold_on`."""
        return str(hold_on(self._client, check_key(key)) or "")

    def version_rule(self) -> VersionRule | None:
        """See `KeepsVersions.version_rule`."""
        return version_rule(self._client)

    def _delete(self, operation: str, objects: Sequence[dict[str, str]]) -> Sequence[dict[str, str]]:
        """Delete objects or versions; return the errors of those that were not."""
        undeleted: list[dict[str, str]] = []
        for start in range(0, len(objects), _DELETE_KEYS_MAX):
            batch = objects[start : start + _DELETE_KEYS_MAX]
            answer = self._client.call(
                operation,
                f"({len(batch)} objects)",
                "delete_objects",
                Delete={"Objects": batch, "Quiet": True},
            )
            undeleted += answer.get("Errors", ())
        return undeleted

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """See `KeepsUnfinished.unfinished_uploads`; a server without this request has no such uploads."""
        check_prefix(prefix)
        try:
            yield from self._unfinished(prefix)
        except ColdStorageError as error:
            if status_of(error.__cause__) not in (405, 501):
                raise

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """See `KeepsUnfinished.abort_upload`."""
        key = check_key(upload.key)
        try:
            self._client.call(
                "abort",
                key,
                "abort_multipart_upload",
                Key=self._client.prefix + key,
                UploadId=upload.upload_id,
            )
        except ColdStorageError as error:
            cause = error.__cause__
            if not isinstance(cause, ClientError) or cause.response["Error"].get("Code") != "NoSuchUpload":
                raise

    def close(self) -> None:
        """Close the connections of this process; a later call opens new ones."""
        self._client.close()

    @contextmanager
    def _confirm_absence(self, key: str) -> Iterator[None]:
        """Raise `ObjectNotFound` if the server denies access to an object that it does not list.

        For a missing object S3 answers 403 to a caller who may not list the whole bucket. A listing of this name alone is
        as authoritative as a 404 (promise P10), and a policy for the prefix allows it.
        """
        try:
            yield
        except ColdStorageError as error:
            if not is_denied(error.__cause__):
                raise
            try:
                names = [row["Key"] for row in self._rows("get", key, "Contents", "Key")]
            except ColdStorageError:
                raise error from error.__cause__
            if self._client.prefix + key in names:
                raise
            raise ObjectNotFound(
                f"{self.url}/{key}: there is no such object: its name is not listed"
            ) from error

    def _put(self, key: str, data: Bytes, **condition: Any) -> str:
        # For `bytes` the SDK asks first whether it may send the body (Expect: 100-continue): another round trip.
        body = bytearray(data)
        answer = self._client.call(
            "put",
            key,
            "put_object",
            Key=self._client.prefix + key,
            Body=body,
            **checksum(body),
            **self._client.encryption(),
            **condition,
        )
        self._client.check_encrypted(answer, f"{self.url}/{key}")
        # The write took effect. If only this answer lacks the ETag, the caller learns the outcome by reading.
        return etag_of(answer, f"cannot put {self.url}/{key}", retryable=True)

    def _replace(self, key: str, data: Bytes, etag: str) -> str:
        """Write if the object has this ETag, which is sent in the form that the server takes."""
        if self._quotes is False:
            return self._put(key, data, IfMatch=_bare(etag))
        try:
            new = self._put(key, data, IfMatch=etag)
        except PreconditionFailed:
            # Only before the first success; after it, a refusal is a refusal.
            if self._quotes or not self._refuses_quotes(key, etag):
                raise
            self._quotes = False
            return self._put(key, data, IfMatch=_bare(etag))
        self._quotes = True
        return new

    def _refuses_quotes(self, key: str, etag: str) -> bool:
        """Whether the server refused the object's own ETag and compares ETags without quotes, as Ceph RGW does.

        False if that cannot be determined: then the refusal stands.
        """
        try:
            return _bare(etag) != etag and self.stat(key).etag == etag and self._compares_bare()
        except ColdStorageError:
            return False

    def _compares_bare(self) -> bool:
        """Whether the server honours a condition without quotes, tested on a probe: it might ignore it."""
        probe = f"{PROBE_PREFIX}{uuid4()}"
        try:
            first = _bare(self._put(probe, b"first"))
            self._put(probe, b"second", IfMatch=first)
            try:
                self._put(probe, b"third", IfMatch=first)
            except PreconditionFailed:
                return True
            return False
        finally:
            with suppress(ColdStorageError):  # the sweep deletes a probe that stays
                self.delete([probe])

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        start = len(self._client.prefix)
        for row in self._rows("list", prefix, "Contents", "Key", "Size", "LastModified"):
            key = row["Key"][start:]
            # Consoles create objects with an empty name to show a folder.
            if is_key(key):
                yield ObjectInfo(key, row["Size"], row.get("ETag", ""), row["LastModified"].timestamp())

    def _unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        start = len(self._client.prefix)
        arguments: dict[str, Any] = {"Prefix": self._client.prefix + prefix}
        while True:
            page = self._client.call("list uploads of", prefix, "list_multipart_uploads", **arguments)
            for row in page.get("Uploads", ()):
                whole = row.keys() >= {"Key", "UploadId", "Initiated"}
                if whole and row["Key"].startswith(arguments["Prefix"]) and is_key(row["Key"][start:]):
                    yield UnfinishedUpload(row["Key"][start:], row["UploadId"], row["Initiated"].timestamp())
            following = (page.get("NextKeyMarker"), page.get("NextUploadIdMarker"))
            if not page.get("IsTruncated"):
                return
            if not following[0] or following == (arguments.get("KeyMarker"), arguments.get("UploadIdMarker")):
                raise ColdStorageError(
                    f"cannot list uploads of {self.url}/{prefix}: the server broke the listing off"
                )
            arguments |= {"KeyMarker": following[0], "UploadIdMarker": following[1] or ""}

    def _old_versions(self, prefix: str) -> Iterator[OldVersion]:
        start = len(self._client.prefix)
        arguments: dict[str, Any] = {"Prefix": self._client.prefix + prefix}
        while True:
            page = self._client.call("list versions of", prefix, "list_object_versions", **arguments)
            # A marker hides the versions before it, and holds no data.
            for row in page.get("Versions", ()):
                whole = row.keys() >= {"Key", "VersionId", "IsLatest", "LastModified"}
                if not whole or not row["Key"].startswith(arguments["Prefix"]):
                    raise ColdStorageError(
                        f"cannot list versions of {self.url}/{prefix}: the server listed another prefix, or an incomplete row",
                        retryable=True,
                    )
                if not row["IsLatest"] and is_key(row["Key"][start:]):
                    modified = row["LastModified"].timestamp()
                    yield OldVersion(row["Key"][start:], row["VersionId"], modified)
            following = (page.get("NextKeyMarker"), page.get("NextVersionIdMarker"))
            if not page.get("IsTruncated"):
                return
            if not following[0] or following == (
                arguments.get("KeyMarker"),
                arguments.get("VersionIdMarker"),
            ):
                raise ColdStorageError(
                    f"cannot list versions of {self.url}/{prefix}: the server broke the listing off"
                )
            arguments |= {"KeyMarker": following[0], "VersionIdMarker": following[1] or ""}

    def _rows(
        self, operation: str, prefix: str, element: str, name: str, *others: str, **arguments: Any
    ) -> Iterator[Any]:
        """Yield the rows of a listing, checked: each has these fields, and the first field begins with the prefix.

        Objects that are listed may be deleted, so a listing of another prefix, or an incomplete row, is refused.
        """
        full_prefix = self._client.prefix + prefix
        for page in self._pages(operation, prefix, **arguments):
            for row in page.get(element, ()):
                if not row.keys() >= {name, *others} or not row[name].startswith(full_prefix):
                    raise ColdStorageError(
                        f"cannot {operation} {self.url}/{prefix}: the server listed another prefix, or an incomplete row: "
                        f"{row.get(name)!r}",
                        retryable=True,
                    )
                yield row

    def _pages(self, operation: str, prefix: str, **arguments: Any) -> Iterator[Any]:
        arguments["Prefix"] = self._client.prefix + prefix
        while True:
            page = self._client.call(operation, prefix, "list_objects_v2", **arguments)
            if "IsTruncated" not in page:
                # An empty body parses as an empty listing.
                raise ColdStorageError(
                    f"cannot {operation} {self.url}/{prefix}: the server's answer is not a listing",
                    retryable=True,
                )
            yield page
            if not page.get("IsTruncated"):
                return
            token = page.get("NextContinuationToken")
            if not token or token == arguments.get("ContinuationToken"):
                raise ColdStorageError(
                    f"cannot {operation} {self.url}/{prefix}: the server broke the listing off"
                )
            arguments["ContinuationToken"] = token

    def _raise_undeleted(self, errors: Iterable[dict[str, str]], operation: str) -> None:
        failed = [error for error in errors if error.get("Code") != "NoSuchKey"]
        if not failed:
            return
        first = ClientError({"Error": failed[0]}, "DeleteObjects")
        key = failed[0].get("Key", "")[len(self._client.prefix) :]
        translated = translate(first, operation, key, self.url)
        translated.args = (f"{translated.args[0]} ({len(failed)} objects were not deleted)",)
        raise translated


def _bare(etag: str) -> str:
    """Return an ETag without its quotes."""
    return etag.strip('"')
