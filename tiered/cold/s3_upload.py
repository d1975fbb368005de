"""A streaming upload to S3: one PUT, or parts, each verified by the server and then as a whole."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from crc32c import crc32c

from ..errors import ColdStorageError, PreconditionFailed
from .object_store import Bytes, ObjectInfo
from .s3_client import S3Client, checksum, encode_crc, etag_of

logger = logging.getLogger(__name__)

Part = tuple[int, str, int]  # number, ETag, CRC32C


class S3Upload:
    """See `Upload`. Holds ``upload_threads`` parts under way and one that fills.

    A process that dies here leaves an unfinished multipart upload: no listing shows it, it costs storage
    until a lifecycle rule (``AbortIncompleteMultipartUpload``) removes it.
    """

    def __init__(self, client: S3Client, key: str, *, exclusive: bool) -> None:
        self._client = client
        self._key = key
        self._exclusive = {"IfNoneMatch": "*"} if exclusive else {}
        self._part_bytes = client.options.part_bytes
        self._slots = threading.Semaphore(client.options.upload_threads)
        self._buffer = bytearray()
        self._size = 0
        self._crc = 0
        self._upload_id: str | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._parts: list[Future[Part]] = []
        self._failed = threading.Event()
        self._ended = False

    def write(self, data: Bytes) -> int:
        """Take `data`; blocks while the parts before it are on their way."""
        self._check_open()
        view = memoryview(data)
        if not view.nbytes:
            return 0
        view = view.cast("B")
        self._crc = crc32c(view, self._crc)
        self._size += len(view)
        position = 0
        while position < len(view):
            # A full buffer leaves only when more follows: an upload of exactly one part is one PUT.
            if len(self._buffer) == self._part_bytes:
                self._send()
            taken = view[position : position + self._part_bytes - len(self._buffer)]
            self._buffer += taken
            position += len(taken)
        return len(view)

    def commit(self) -> ObjectInfo:
        """See `Upload.commit`."""
        self._check_open()
        info: ObjectInfo | None = None
        try:
            parts = self._sent()
            expected = self._expected(parts)
            try:
                self._publish(parts)
            except ColdStorageError as error:
                info = self._landed(error, expected)
                if info is None:
                    raise
        except BaseException:
            self.abort()
            raise
        self._release()
        return info or self._verified(expected)

    def abort(self) -> None:
        """Drop what was written; may be called twice, and after `commit`."""
        if self._ended:
            return
        upload_id = self._upload_id
        self._release()
        if upload_id is None:
            return
        try:
            self._call("abort_multipart_upload", UploadId=upload_id)
        except ColdStorageError as error:
            logger.warning(
                "parts of %s/%s stay until a lifecycle rule: %s", self._client.url, self._key, error
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _send(self) -> None:
        """Hand the buffer to a thread, as soon as one is free."""
        if self._threads is None:
            options = self._client.options
            answer = self._call(
                "create_multipart_upload",
                ChecksumAlgorithm="CRC32C",
                ChecksumType="COMPOSITE",
                **self._storage_class(),
            )
            self._upload_id = answer.get("UploadId") or None
            if self._upload_id is None:
                raise ColdStorageError(
                    f"cannot upload {self._client.url}/{self._key}: the server's answer names no upload",
                    retryable=True,
                )
            self._threads = ThreadPoolExecutor(options.upload_threads, thread_name_prefix="tiered-s3-part")
        self._slots.acquire()
        if self._failed.is_set():
            self._slots.release()
            for part in self._parts:
                if part.done():
                    part.result()
        self._parts.append(self._threads.submit(self._send_part, len(self._parts) + 1, self._buffer))
        self._buffer = bytearray()

    def _send_part(self, number: int, body: bytearray) -> Part:
        try:
            answer = self._call(
                "upload_part", UploadId=self._upload_id, PartNumber=number, Body=body, **checksum(body)
            )
            return number, etag_of(answer, f"{self._client.url}/{self._key}"), crc32c(body)
        except BaseException:
            self._failed.set()
            raise
        finally:
            self._slots.release()

    def _sent(self) -> list[Part]:
        """Send the rest of a multipart upload and wait for every part."""
        if self._upload_id is not None and self._buffer:
            self._send()
        return [part.result() for part in self._parts]

    def _publish(self, parts: list[Part]) -> None:
        if not parts:
            body = self._buffer
            self._call("put_object", Body=body, **checksum(body), **self._storage_class(), **self._exclusive)
            return
        listed = [
            {"PartNumber": number, "ETag": etag, "ChecksumCRC32C": encode_crc(crc)}
            for number, etag, crc in parts
        ]
        self._call(
            "complete_multipart_upload",
            UploadId=self._upload_id,
            MultipartUpload={"Parts": listed},
            **self._exclusive,
        )

    def _expected(self, parts: list[Part]) -> set[str]:
        """Return the checksums that prove these bytes: of the whole, and of the parts' checksums."""
        composite = crc32c(b"".join(crc.to_bytes(4, "big") for _, _, crc in parts))
        return {encode_crc(self._crc), *([encode_crc(composite)] if parts else [])}

    def _landed(self, error: ColdStorageError, expected: set[str]) -> ObjectInfo | None:
        """Return the object if a request whose answer was lost did succeed.

        The key is never used twice, so an object with this size and checksum is this upload's.
        """
        if not (error.retryable or isinstance(error, PreconditionFailed)):
            return None
        try:
            return self._verified(expected)
        except ColdStorageError:
            return None

    def _verified(self, expected: set[str]) -> ObjectInfo:
        """Return the object as the server reports it, or raise if that is not what was written."""
        where = f"{self._client.url}/{self._key}"
        answer = self._client.head("upload", self._key)
        if answer["ContentLength"] != self._size:
            raise ColdStorageError(
                f"{where} arrived with {answer['ContentLength']} of {self._size} bytes; upload it again",
                retryable=True,
            )
        reported = answer.get("ChecksumCRC32C")
        # The number of parts follows a dash.
        arrived = reported.partition("-")[0] if reported else encode_crc(self._read_back())
        if arrived not in expected:
            raise ColdStorageError(
                f"{where} arrived damaged: its CRC32C differs; upload it again", retryable=True
            )
        return ObjectInfo(self._key, self._size, etag_of(answer, where), answer["LastModified"].timestamp())

    def _read_back(self) -> int:
        """Return the CRC32C of what a server that keeps no checksums holds."""
        crc = 0
        for start in range(0, self._size, self._part_bytes):
            data, _ = self._client.read(self._key, (start, min(self._part_bytes, self._size - start)))
            crc = crc32c(data, crc)
        return crc

    def _storage_class(self) -> dict[str, str]:
        # Left out where it is the default: some S3-compatible servers know no storage classes.
        wanted = self._client.options.storage_class
        return {} if wanted == "STANDARD" else {"StorageClass": wanted}

    def _call(self, method: str, **arguments: Any) -> Any:
        return self._client.call(
            "upload", self._key, method, Key=self._client.prefix + self._key, **arguments
        )

    def _release(self) -> None:
        self._ended = True
        self._buffer = bytearray()
        if self._threads is not None:
            # A part still on its way could arrive after the abort, and stay.
            self._threads.shutdown(wait=True, cancel_futures=True)

    def _check_open(self) -> None:
        if self._ended:
            raise ValueError(f"the upload of {self._key} has ended")
