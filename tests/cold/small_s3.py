"""An S3 server in memory that keeps what it promises: fast enough to measure against, and strict where moto is not.

It verifies the CRC32C of every body and of whole multipart uploads, holds conditional writes atomic, and echoes
encryption. ``python -m tests.cold.small_s3`` serves until its standard input closes; credentials are not looked at.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from uuid import uuid4
from xml.sax.saxutils import escape

from crc32c import crc32c

from tests.cold.small_server import Answer, Request, refusal, serving

_PAGE = 1000
_CRC = "x-amz-checksum-crc32c"
_SSE = "x-amz-server-side-encryption"
_KEPT = (_SSE, f"{_SSE}-aws-kms-key-id", "x-amz-storage-class", "x-amz-tagging")


@dataclass(frozen=True, slots=True)
class Stored:
    data: bytes
    etag: str
    crc: str
    modified: datetime
    kept: dict[str, str]


@dataclass(slots=True)
class Unfinished:
    key: str
    begun: datetime
    kept: dict[str, str]
    parts: dict[int, tuple[bytes, str]] = field(default_factory=dict)


def crc_text(data: bytes) -> str:
    return base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()


class SmallS3:
    """Answers requests on one bucket.

    Parameters
    ----------
    clock
        When something is written.
    fault
        Asked before each request; an answer of its own is sent in place of the right one.
    """

    def __init__(
        self,
        bucket: str = "bucket",
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        fault: Callable[[Request], Answer | None] = lambda request: None,
    ) -> None:
        self.bucket = bucket
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Unfinished] = {}
        self.clock = clock
        self.fault = fault
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Answer:
        injected = self.fault(request)
        if injected is not None:
            return injected
        url = urlsplit(request.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        bucket, _, key = unquote(url.path[1:]).partition("/")
        if bucket != self.bucket:
            return refusal(404, "NoSuchBucket")
        declared = request.headers.get(_CRC)
        if declared is not None and request.method == "PUT" and declared != crc_text(request.body):
            return refusal(400, "BadDigest")
        with self._lock:
            if not key:
                return self._on_bucket(request, query)
            if "uploadId" in query or "uploads" in query:
                return self._on_upload(request, key, query)
            return self._on_object(request, key)

    def _on_bucket(self, request: Request, query: dict[str, str]) -> Answer:
        if request.method == "POST" and "delete" in query:
            for element in ET.fromstring(request.body).iter():
                if element.tag.endswith("Key"):
                    self.objects.pop(element.text or "", None)
            return Answer(200, b"<DeleteResult/>")
        if request.method == "GET" and "uploads" in query:
            return self._list_uploads(query)
        if request.method == "GET":
            return self._list_objects(query)
        return refusal(405, "MethodNotAllowed")

    def _on_object(self, request: Request, key: str) -> Answer:
        found = self.objects.get(key)
        if request.method == "PUT":
            refused = self._unmet(request, found)
            return refused or self._keep(
                key, request.body, crc_text(request.body), _kept(request.headers), f'"{_md5(request.body)}"'
            )
        if request.method == "DELETE":
            self.objects.pop(key, None)
            return Answer(204)
        if found is None:
            return refusal(404, "NoSuchKey")
        headers = {"ETag": found.etag, "Last-Modified": format_datetime(found.modified, usegmt=True)}
        headers |= {name: value for name, value in found.kept.items() if "tagging" not in name}
        if "range" not in request.headers:
            return Answer(200, found.data, {**headers, _CRC: found.crc})
        first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        if int(first) >= len(found.data):
            return refusal(416, "InvalidRange")
        end = min(int(last) + 1, len(found.data))
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(found.data)}"
        return Answer(206, found.data[int(first) : end], headers)

    def _on_upload(self, request: Request, key: str, query: dict[str, str]) -> Answer:
        if "uploads" in query:
            upload_id = uuid4().hex
            self.uploads[upload_id] = Unfinished(key, self.clock(), _kept(request.headers))
            return Answer(200, f"<R><UploadId>{upload_id}</UploadId></R>".encode())
        upload = self.uploads.get(query["uploadId"])
        if upload is None or upload.key != key:
            return refusal(404, "NoSuchUpload")
        if request.method == "PUT":
            crc = crc_text(request.body)
            upload.parts[int(query["partNumber"])] = request.body, crc
            return Answer(200, b"", {"ETag": f'"{crc}"', _CRC: crc})
        if request.method == "DELETE":
            del self.uploads[query["uploadId"]]
            return Answer(204)
        refused = self._unmet(request, self.objects.get(key))
        if refused:
            return refused
        parts = [upload.parts[number] for number in sorted(upload.parts)]
        if any(len(data) < 5 << 20 for data, _ in parts[:-1]):
            return refusal(400, "EntityTooSmall")
        del self.uploads[query["uploadId"]]
        whole = crc_text(b"".join(base64.b64decode(crc) for _, crc in parts))
        etag = f'"{uuid4().hex}-{len(parts)}"'
        data = b"".join(data for data, _ in parts)
        return self._keep(key, data, f"{whole}-{len(parts)}", upload.kept, etag)

    def _keep(self, key: str, data: bytes, crc: str, kept: dict[str, str], etag: str) -> Answer:
        self.objects[key] = Stored(data, etag, crc, self.clock(), kept)
        body = f"<R><ETag>{escape(etag)}</ETag></R>".encode()
        sse = {name: value for name, value in kept.items() if name.startswith(_SSE)}
        return Answer(200, body, {"ETag": etag, **sse})

    def _unmet(self, request: Request, found: Stored | None) -> Answer | None:
        wanted = request.headers.get("if-match")
        if wanted is not None and found is None:
            return refusal(404, "NoSuchKey")
        if wanted not in (None, found and found.etag) or (found and "if-none-match" in request.headers):
            return refusal(412, "PreconditionFailed")
        return None

    def _list_objects(self, query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        rows: list[str] = []
        after = unquote(query.get("continuation-token", ""))
        folders: set[str] = set()
        truncated = last = ""
        for key in sorted((key for key in self.objects if key.startswith(prefix)), key=str.encode):
            rest = key[len(prefix) :]
            folder = (
                prefix + rest.partition(delimiter)[0] + delimiter if delimiter in rest and delimiter else ""
            )
            if folder in folders or (folder or key).encode() <= after.encode():
                continue
            if len(rows) == _PAGE:
                truncated = f"<NextContinuationToken>{quote(last)}</NextContinuationToken>"
                break
            last = folder or key
            if folder:
                folders.add(folder)
                rows.append(f"<CommonPrefixes><Prefix>{_url(folder, query)}</Prefix></CommonPrefixes>")
                continue
            found = self.objects[key]
            rows.append(
                f"<Contents><Key>{_url(key, query)}</Key><Size>{len(found.data)}</Size><ETag>{escape(found.etag)}</ETag>"
                f"<LastModified>{_iso(found.modified)}</LastModified></Contents>"
            )
        flag = "true" if truncated else "false"
        coding = "<EncodingType>url</EncodingType>" if query.get("encoding-type") == "url" else ""
        return Answer(
            200,
            f"<ListBucketResult><IsTruncated>{flag}</IsTruncated>{coding}{truncated}{''.join(rows)}"
            "</ListBucketResult>".encode(),
        )

    def _list_uploads(self, query: dict[str, str]) -> Answer:
        marker = query.get("key-marker", ""), query.get("upload-id-marker", "")
        found = sorted((upload.key, upload_id) for upload_id, upload in self.uploads.items())
        found = [row for row in found if row[0].startswith(query.get("prefix", "")) and row > marker]
        rows = "".join(
            f"<Upload><Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId>"
            f"<Initiated>{_iso(self.uploads[upload_id].begun)}</Initiated></Upload>"
            for key, upload_id in found[:2]
        )
        more = len(found) > 2
        following = (
            f"<NextKeyMarker>{escape(found[1][0])}</NextKeyMarker><NextUploadIdMarker>{found[1][1]}</NextUploadIdMarker>"
            if more
            else ""
        )
        flag = "true" if more else "false"
        return Answer(200, f"<R><IsTruncated>{flag}</IsTruncated>{following}{rows}</R>".encode())


def _kept(headers: dict[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in _KEPT if name in headers}


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _url(key: str, query: dict[str, str]) -> str:
    return quote(key) if query.get("encoding-type") == "url" else escape(key)


def _iso(moment: datetime) -> str:
    # As S3 does: whole seconds, in listings and in Last-Modified.
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")


@contextmanager
def small_s3(server: SmallS3 | None = None, *, keep: bool = False) -> Iterator[tuple[str, SmallS3]]:
    """Yield the address of a server, and the server."""
    server = server or SmallS3()
    with serving(server, keep=keep) as (endpoint, _):
        yield endpoint, server


if __name__ == "__main__":
    with small_s3() as (address, _):
        print(address, flush=True)
        sys.stdin.read()
