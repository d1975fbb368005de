"""An S3 server in memory, strict and fast: in a thread (`s3_thread`) or in a process of its own (`s3_process`).

moto copies an object for every ranged read, accepts wrong checksums and needs several milliseconds a request.
This server knows what the store uses and no more; every bucket exists, and any credentials do. Methods of `S3`
have the names that S3's API gives to the operations.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import quote, unquote
from uuid import uuid4
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from crc32c import crc32c

from tests.support.paths import ROOT
from tests.support.scripted_server import Answer, Request, refusal, serving

_PAGE_KEYS_MAX = 1000
_PAGE_UPLOADS_MAX = 2  # S3 has 1000, and then no test would see a second page
_PART_BYTES_MIN = 5 << 20
_CRC = "x-amz-checksum-crc32c"
_SSE = "x-amz-server-side-encryption"
_TAGS = "x-amz-tagging"
_KEPT = (_SSE, f"{_SSE}-aws-kms-key-id", "x-amz-storage-class", _TAGS)
# By method, whether a key is named, and what of it or of the bucket.
_SUBRESOURCES = ("delete", "lifecycle", "uploads", "uploadId", "versions")
_OPERATIONS = {
    ("PUT", False, ""): "CreateBucket",
    ("HEAD", False, ""): "HeadBucket",
    ("GET", False, ""): "ListObjectsV2",
    ("GET", False, "lifecycle"): "GetBucketLifecycleConfiguration",
    ("GET", False, "uploads"): "ListMultipartUploads",
    ("GET", False, "versions"): "ListObjectVersions",
    ("POST", False, "delete"): "DeleteObjects",
    ("PUT", True, ""): "PutObject",
    ("GET", True, ""): "GetObject",
    ("HEAD", True, ""): "HeadObject",
    ("DELETE", True, ""): "DeleteObject",
    ("POST", True, "uploads"): "CreateMultipartUpload",
    ("PUT", True, "uploadId"): "UploadPart",
    ("POST", True, "uploadId"): "CompleteMultipartUpload",
    ("DELETE", True, "uploadId"): "AbortMultipartUpload",
}


@dataclass(frozen=True, slots=True)
class Stored:
    """An object, or a part of one; ``crc`` is empty where none was sent along."""

    data: bytes
    etag: str
    crc: str
    modified: datetime
    kept: dict[str, str]


@dataclass(slots=True)
class Unfinished:
    """A multipart upload; ``key`` begins with the bucket."""

    key: str
    begun: datetime
    kept: dict[str, str]
    parts: dict[int, Stored] = field(default_factory=dict)


class Refused(Exception):
    """The status and S3's code of an error that is the answer."""


def operation_of(request: Request) -> str:
    """Return S3's name of what is asked."""
    subresource = next((name for name in _SUBRESOURCES if name in request.query), "")
    _, _, key = request.place.partition("/")
    return _OPERATIONS.get((request.method, bool(key), subresource), "NotImplemented")


def deleted_by(request: Request) -> list[str]:
    """Return the keys of a DeleteObjects."""
    return texts_of(request, "Key")


class S3:
    """Answers requests.

    Parameters
    ----------
    fault
        Asked before each request; an answer of its own is sent in place of the right one.

    Attributes
    ----------
    objects
        By ``bucket/key``.
    uploads
        By the upload's id.
    keeps_versions
        Whether what `DeleteObjects` deletes stays as an old version.
    held_until
        Until when Object Lock holds every version, old and new ones; None without one.
    legal_hold
        Whether every version has a legal hold.
    held_code
        The code of the error for a version that is held; MinIO has another than S3.
    old
        Old versions: by ``bucket/key`` and their id.
    counts
        Requests by S3's name of the operation (or of the error), and ``bytes_sent`` and ``bytes_received``.
        ``GET /-/counts`` answers them as JSON, ``DELETE /-/counts`` begins anew.
    """

    def __init__(self, *, fault: Callable[[Request], Answer | None] = lambda request: None) -> None:
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Unfinished] = {}
        self.keeps_versions = False
        self.held_until: datetime | None = None
        self.legal_hold = False
        self.held_code = "AccessDenied"
        self.old: dict[tuple[str, str], Stored] = {}
        self.counts: Counter[str] = Counter()
        self.fault = fault
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Answer:
        injected = self.fault(request)
        if injected is not None:
            return injected
        if request.path == "/-/counts":
            return self._count(request)
        if "aws-chunked" in request.headers.get("content-encoding", ""):
            request = replace(request, body=_unchunked(request.body))
        operation = operation_of(request)
        try:
            answer: Answer = getattr(self, operation)(request)
        except Refused as refused:
            status, operation = refused.args
            answer = refusal(status, operation)
        with self._lock:
            self.counts[operation] += 1
            self.counts["bytes_sent"] += 0 if request.method == "HEAD" else len(answer.body)
            self.counts["bytes_received"] += len(request.body)
        return answer

    def _count(self, request: Request) -> Answer:
        with self._lock:
            if request.method == "DELETE":
                self.counts.clear()
            return Answer(200, json.dumps(self.counts).encode())

    def NotImplemented(self, request: Request) -> Answer:
        raise Refused(501, "NotImplemented")

    # -- objects ---------------------------------------------------------------------------------

    def PutObject(self, request: Request) -> Answer:
        new = self._received(request)
        with self._lock:
            self._check_conditions(request)
            self.objects[request.place] = new
        return Answer(200, headers=_written(new))

    def GetObject(self, request: Request) -> Answer:
        found = self.objects.get(request.place)
        if found is None:
            raise Refused(404, "NoSuchKey")
        headers = {"ETag": found.etag, "Last-Modified": format_datetime(found.modified, usegmt=True)}
        headers |= {name: value for name, value in found.kept.items() if name != _TAGS}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        if wanted is None:
            if found.crc and request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
                headers |= {_CRC: found.crc, "x-amz-checksum-type": _crc_type(found.crc)}
            return Answer(200, found.data, headers)
        size = len(found.data)
        first = int(wanted[1]) if wanted[1] else max(0, size - int(wanted[2]))
        end = min(size, int(wanted[2]) + 1) if wanted[1] and wanted[2] else size
        if first >= size:
            raise Refused(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
        return Answer(206, memoryview(found.data)[first:end], headers)

    def HeadObject(self, request: Request) -> Answer:
        version = request.query.get("versionId")
        if version is None:
            answer = self.GetObject(request)
        elif (request.place, version) in self.old:
            answer = Answer(200)
        else:
            raise Refused(404, "NoSuchVersion")
        held = {"x-amz-object-lock-legal-hold": "ON"} if self.legal_hold else {}
        if self.held_until is not None:
            until = self.held_until.strftime("%Y-%m-%dT%H:%M:%S.000Z")
            held |= {"x-amz-object-lock-mode": "COMPLIANCE", "x-amz-object-lock-retain-until-date": until}
        return replace(answer, headers={**answer.headers, **held})

    def DeleteObject(self, request: Request) -> Answer:
        with self._lock:
            self._check_conditions(request)
            self.objects.pop(request.place, None)
        return Answer(204)

    def DeleteObjects(self, request: Request) -> Answer:
        keys, versions = deleted_by(request), texts_of(request, "VersionId")
        if versions and (self.held_until is not None or self.legal_hold):
            return document(
                "DeleteResult",
                *(
                    f"<Error><Key>{escape(key)}</Key><VersionId>{version}</VersionId><Code>{self.held_code}</Code>"
                    "<Message>Access Denied because object protected by object lock.</Message></Error>"
                    for key, version in zip(keys, versions, strict=True)
                ),
            )
        with self._lock:
            for place in (_home(request) + key for key in keys):
                if versions:
                    self.old.pop((place, versions.pop(0)), None)
                elif (found := self.objects.pop(place, None)) and self.keeps_versions:
                    self.old[place, uuid4().hex] = found
        return document("DeleteResult")

    def _received(self, request: Request) -> Stored:
        declared = request.headers.get(_CRC, "")
        if declared and declared != _crc(request.body):
            raise Refused(400, "BadDigest")
        etag = f'"{hashlib.md5(request.body).hexdigest()}"'
        return Stored(request.body, etag, declared, datetime.now(UTC), _kept(request))

    def _check_conditions(self, request: Request) -> None:
        match, found = request.headers.get("if-match"), self.objects.get(request.place)
        if match is not None and found is None:
            raise Refused(404, "NoSuchKey")
        if found and (match not in (None, found.etag) or "if-none-match" in request.headers):
            raise Refused(412, "PreconditionFailed")

    # -- multipart uploads -----------------------------------------------------------------------

    def CreateMultipartUpload(self, request: Request) -> Answer:
        upload_id = uuid4().hex
        with self._lock:
            self.uploads[upload_id] = Unfinished(request.place, datetime.now(UTC), _kept(request))
        return document("InitiateMultipartUploadResult", f"<UploadId>{upload_id}</UploadId>")

    def UploadPart(self, request: Request) -> Answer:
        part = self._received(request)
        self._upload(request).parts[int(request.query["partNumber"])] = part
        return Answer(200, headers=_written(part))

    def CompleteMultipartUpload(self, request: Request) -> Answer:
        upload = self._upload(request)
        found = [upload.parts.get(int(number)) for number in texts_of(request, "PartNumber")]
        parts = [part for part in found if part]
        if len(parts) < len(found):
            raise Refused(400, "InvalidPart")
        if any(len(part.data) < _PART_BYTES_MIN for part in parts[:-1]):
            raise Refused(400, "EntityTooSmall")
        new = Stored(b"".join(part.data for part in parts), *_composed(parts), datetime.now(UTC), upload.kept)
        with self._lock:
            self._check_conditions(request)
            self.objects[request.place] = new
            self.uploads.pop(request.query["uploadId"], None)
        about = f"<ETag>{escape(new.etag)}</ETag>"
        if new.crc:
            kind = _crc_type(new.crc)
            about += f"<ChecksumCRC32C>{new.crc}</ChecksumCRC32C><ChecksumType>{kind}</ChecksumType>"
        return document("CompleteMultipartUploadResult", about, headers=_written(new))

    def AbortMultipartUpload(self, request: Request) -> Answer:
        self._upload(request)
        with self._lock:
            self.uploads.pop(request.query["uploadId"], None)
        return Answer(204)

    def _upload(self, request: Request) -> Unfinished:
        found = self.uploads.get(request.query["uploadId"])
        if found is None or found.key != request.place:
            raise Refused(404, "NoSuchUpload")
        return found

    # -- buckets ---------------------------------------------------------------------------------

    def CreateBucket(self, request: Request) -> Answer:
        return Answer(200)

    HeadBucket = CreateBucket

    def GetBucketLifecycleConfiguration(self, request: Request) -> Answer:
        raise Refused(404, "NoSuchLifecycleConfiguration")

    def ListMultipartUploads(self, request: Request) -> Answer:
        home, query = _home(request), request.query
        first = home + query.get("prefix", "")
        marker = home + query.get("key-marker", ""), query.get("upload-id-marker", "")
        with self._lock:
            found = sorted(
                (upload.key, upload_id, upload.begun) for upload_id, upload in self.uploads.items()
            )
        found = [row for row in found if row[0].startswith(first) and row[:2] > marker]
        rows = "".join(
            f"<Upload><Key>{escape(key.removeprefix(home))}</Key><UploadId>{upload_id}</UploadId>"
            f"<Initiated>{_iso(begun)}</Initiated></Upload>"
            for key, upload_id, begun in found[:_PAGE_UPLOADS_MAX]
        )
        following = ""
        if more := len(found) > _PAGE_UPLOADS_MAX:
            key, upload_id, _ = found[_PAGE_UPLOADS_MAX - 1]
            following = f"<NextKeyMarker>{escape(key.removeprefix(home))}</NextKeyMarker>"
            following += f"<NextUploadIdMarker>{upload_id}</NextUploadIdMarker>"
        return document("ListMultipartUploadsResult", _truncated(more), following, rows)

    def ListObjectVersions(self, request: Request) -> Answer:
        home = _home(request)
        first = home + request.query.get("prefix", "")
        with self._lock:
            rows = [
                f"<Version><Key>{escape(place.removeprefix(home))}</Key><VersionId>{version}</VersionId>"
                f"<IsLatest>false</IsLatest><LastModified>{_iso(stored.modified)}</LastModified></Version>"
                for (place, version), stored in sorted(self.old.items())
                if place.startswith(first)
            ]
        return document("ListVersionsResult", _truncated(None), *rows)

    def ListObjectsV2(self, request: Request) -> Answer:
        home, query = _home(request), request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = unquote(query.get("continuation-token", "")) or query.get("start-after", "")
        limit = min(_PAGE_KEYS_MAX, int(query.get("max-keys", _PAGE_KEYS_MAX)))
        coded = query.get("encoding-type") == "url"
        shown = quote if coded else escape
        rows: dict[str, str] = {}
        following = ""
        with self._lock:
            found = {
                key.removeprefix(home): stored
                for key, stored in self.objects.items()
                if key.startswith(home + prefix)
            }
        for key in sorted(found):
            rest = key[len(prefix) :]
            folder = (
                prefix + rest.partition(delimiter)[0] + delimiter if delimiter and delimiter in rest else ""
            )
            name = folder or key
            if name <= after or name in rows:
                continue
            if len(rows) == limit:
                following = f"<NextContinuationToken>{quote(next(reversed(rows)))}</NextContinuationToken>"
                break
            stored = found[key]
            rows[name] = (
                f"<CommonPrefixes><Prefix>{shown(folder)}</Prefix></CommonPrefixes>"
                if folder
                else f"<Contents><Key>{shown(key)}</Key><Size>{len(stored.data)}</Size><ETag>{escape(stored.etag)}"
                f"</ETag><LastModified>{_iso(stored.modified)}</LastModified></Contents>"
            )
        coding = "<EncodingType>url</EncodingType>" if coded else ""
        count = f"<KeyCount>{len(rows)}</KeyCount>"
        return document("ListBucketResult", _truncated(following), count, coding, following, *rows.values())


def _home(request: Request) -> str:
    return request.place.rstrip("/") + "/"


def _kept(request: Request) -> dict[str, str]:
    return {name: request.headers[name] for name in _KEPT if name in request.headers}


def texts_of(request: Request, tag: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(request.body).iter() if node.tag.endswith(tag)]


def _unchunked(body: bytes) -> bytes:
    pieces, at = [], 0
    while size := int(body[at : (end := body.index(b"\r\n", at))].split(b";")[0], 16):
        pieces.append(body[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(pieces)


def _crc(data: bytes) -> str:
    return base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()


def _crc_type(crc: str) -> str:
    return "COMPOSITE" if "-" in crc else "FULL_OBJECT"


def _composed(parts: list[Stored]) -> tuple[str, str]:
    """Return ETag and checksum of an object of these parts: those of theirs, and how many they are."""
    etags = b"".join(bytes.fromhex(part.etag.strip('"')) for part in parts)
    crcs = b"".join(base64.b64decode(part.crc) for part in parts)
    crc = f"{_crc(crcs)}-{len(parts)}" if all(part.crc for part in parts) else ""
    return f'"{hashlib.md5(etags).hexdigest()}-{len(parts)}"', crc


def _written(new: Stored) -> dict[str, str]:
    about = {name: value for name, value in new.kept.items() if name.startswith(_SSE)}
    return {"ETag": new.etag, **about, **({_CRC: new.crc} if new.crc else {})}


def document(name: str, *inside: str, headers: dict[str, str] | None = None) -> Answer:
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    body = f"<?xml version='1.0' encoding='UTF-8'?><{name} xmlns='{space}'>{''.join(inside)}</{name}>"
    return Answer(200, body.encode(), {"Content-Type": "application/xml", **(headers or {})})


def _truncated(more: object) -> str:
    return f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>"


def _iso(moment: datetime) -> str:
    # As S3 does: whole seconds, in listings and in Last-Modified.
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")


@contextmanager
def s3_thread(s3: S3 | None = None) -> Iterator[tuple[str, S3]]:
    """Serve in this process for a while; yield the URL, and what answers there."""
    s3 = s3 or S3()
    with serving(s3, keep=False) as (url, _):
        yield url, s3


class S3Process:
    """A server in a process of its own; made by `s3_process`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def counts(self) -> dict[str, int]:
        """Return what `S3.counts` holds."""
        return self._counts("GET")

    def reset(self) -> None:
        """Begin to count anew."""
        self._counts("DELETE")

    def _counts(self, method: str) -> dict[str, int]:
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/-/counts", method=method)) as answer:
            found: dict[str, int] = json.load(answer)
        return found


@contextmanager
def s3_process() -> Iterator[S3Process]:
    """Run a server in a child process for a while."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.s3_server"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield S3Process(process.stdout.readline().decode().strip())
    finally:
        process.stdin.close()  # which ends it, as our own death would
        process.stdout.close()
        process.wait(30)


if __name__ == "__main__":
    with s3_thread() as (address, _):
        print(address, flush=True)
        sys.stdin.buffer.read()
