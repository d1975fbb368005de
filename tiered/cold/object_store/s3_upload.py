"""A streaming upload to S3: one PUT, or parts that the server verifies one by one and then as a whole."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from itertools import accumulate
from typing import Any
from urllib.parse import urlencode

from ...errors import ColdStorageError, PreconditionFailed
from ...format.checksum import crc32c
from .options import PARTS_MAX
from .protocol import Bytes, ObjectInfo, Upload
from .rereads import READS_MAX
from .s3_client import S3Client, checksum, encode_crc, etag_of

logger = logging.getLogger("tiered.cold.s3_upload")

Part = tuple[int, str, int, int]  # number, ETag, CRC32C, size


class S3Upload(Upload):
    """See `Upload`. In memory are ``upload_threads`` parts that are being sent, and one that is filled.

    A process that dies here leaves an unfinished multipart upload: listings do not show it, and it costs storage until
    the sweep or a lifecycle rule (``AbortIncompleteMultipartUpload``) removes it.
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
        """Take `data`; blocks while earlier parts are being sent."""
        self._check_open()
        view = memoryview(data)
        if not view.nbytes:
            return 0
        view = view.cast("B")
        self._crc = crc32c(view, self._crc)
        self._size += len(view)
        position = 0
        while position < len(view):
            # A full buffer is sent only when more follows: an upload of exactly one part is one PUT.
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
            parts = self._finish_parts()
            try:
                info = self._object_in(self._publish(parts))
            except ColdStorageError as error:
                info = self._object_despite(error, parts)
                if info is None:
                    raise
        except BaseException:
            self.abort()
            raise
        self._release()
        return info or self._verify(parts)

    def abort(self) -> None:
        """Discard the upload; may be called twice, and after `commit`."""
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
                "parts of %s/%s stay until a sweep or a lifecycle rule: %s",
                self._client.url,
                self._key,
                error,
            )

    def _send(self) -> None:
        """Hand the buffer to a thread, once one is free."""
        if self._threads is None:
            options = self._client.options
            answer = self._call(
                "create_multipart_upload",
                ChecksumAlgorithm="CRC32C",
                ChecksumType="COMPOSITE",
                **self._storage_arguments(),
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
        if len(self._parts) == PARTS_MAX:
            self._slots.release()
            raise ColdStorageError(
                f"{self._client.url}/{self._key} has more than {PARTS_MAX} parts of {self._part_bytes} bytes; set a "
                "larger cold.part_bytes"
            )
        self._parts.append(self._threads.submit(self._send_part, len(self._parts) + 1, self._buffer))
        self._buffer = bytearray()

    def _send_part(self, number: int, body: bytearray) -> Part:
        try:
            answer = self._call(
                "upload_part", UploadId=self._upload_id, PartNumber=number, Body=body, **checksum(body)
            )
            return number, etag_of(answer, f"{self._client.url}/{self._key}"), crc32c(body), len(body)
        except BaseException:
            self._failed.set()
            raise
        finally:
            self._slots.release()

    def _finish_parts(self) -> list[Part]:
        """Send the rest of a multipart upload and wait for every part."""
        if self._upload_id is not None and self._buffer:
            self._send()
        return [part.result() for part in self._parts]

    def _publish(self, parts: list[Part]) -> Any:
        """Create the object; return the answer to a single PUT, or None if there were parts."""
        if not parts:
            body = self._buffer
            return self._call(
                "put_object", Body=body, **checksum(body), **self._storage_arguments(), **self._exclusive
            )
        listed = [
            {"PartNumber": number, "ETag": etag, "ChecksumCRC32C": encode_crc(crc)}
            for number, etag, crc, _ in parts
        ]
        self._call(
            "complete_multipart_upload",
            UploadId=self._upload_id,
            MultipartUpload={"Parts": listed},
            **self._exclusive,
        )
        return None

    def _object_in(self, answer: Any) -> ObjectInfo | None:
        """Return the object if the answer to its PUT proves what arrived, which saves a request.

        A server that stores checksums answers with the checksum of the stored object: a HEAD would return the same
        field. Without it the caller sends a HEAD.
        """
        if answer is None or self._client.options.read_back:
            return None
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        if date is None or answer.get("ChecksumCRC32C") != encode_crc(self._crc):
            return None
        where = f"{self._client.url}/{self._key}"
        self._client.check_encrypted(answer, where)
        modified = parsedate_to_datetime(date).timestamp()
        return ObjectInfo(self._key, self._size, etag_of(answer, where, retryable=True), modified)

    def _expected(self, parts: list[Part]) -> set[str]:
        """Return the two checksums that prove these bytes: of the whole object, and of its parts' checksums."""
        composite = crc32c(b"".join(crc.to_bytes(4, "big") for _, _, crc, _ in parts))
        return {encode_crc(self._crc), *([encode_crc(composite)] if parts else [])}

    def _object_despite(self, error: ColdStorageError, parts: list[Part]) -> ObjectInfo | None:
        """Return the object if the request succeeded although its answer was lost.

        Keys are unique, so an object with this size and checksum is from this upload.
        """
        if not (error.retryable or isinstance(error, PreconditionFailed)):
            return None
        try:
            return self._verify(parts)
        except ColdStorageError:
            return None

    def _verify(self, parts: list[Part]) -> ObjectInfo:
        """Return the object as the server reports it; raise if that differs from what was written."""
        where = f"{self._client.url}/{self._key}"
        answer = self._client.head("upload", self._key)
        if answer["ContentLength"] != self._size:
            raise ColdStorageError(
                f"{where} arrived with {answer['ContentLength']} of {self._size} bytes; upload it again",
                retryable=True,
            )
        reported = answer.get("ChecksumCRC32C")
        # The number of parts follows a dash.
        arrived = not reported or reported.partition("-")[0] in self._expected(parts)
        if arrived and (self._client.options.read_back or not reported):
            arrived = self._reads_back(parts)
        if not arrived:
            raise ColdStorageError(
                f"{where} arrived damaged: its CRC32C differs; upload it again", retryable=True
            )
        self._client.check_encrypted(answer, where)
        return ObjectInfo(
            self._key, self._size, etag_of(answer, where, retryable=True), answer["LastModified"].timestamp()
        )

    def _reads_back(self, parts: list[Part]) -> bool:
        """Whether the server returns the bytes of every part; several are read at a time."""
        checks = [(crc, size) for _, _, crc, size in parts] or [(self._crc, self._size)]
        ends = accumulate(size for _, size in checks)

        def same(part: tuple[tuple[int, int], int]) -> bool:
            (crc, size), end = part
            # A mismatch is read again: the answer may have been damaged on its way.
            return not size or any(
                crc32c(self._client.read(self._key, (end - size, size))[0]) == crc for _ in range(READS_MAX)
            )

        return all(self._client.pool.map(same, zip(checks, ends, strict=True)))

    def _storage_arguments(self) -> dict[str, str]:
        """Return the arguments for the object's encryption, storage class and tags."""
        options = self._client.options
        arguments = self._client.encryption()
        # The default is omitted: some S3-compatible servers have no storage classes.
        if options.storage_class != "STANDARD":
            arguments["StorageClass"] = options.storage_class
        if options.tags:
            arguments["Tagging"] = urlencode(options.tags)
        return arguments

    def _call(self, method: str, **arguments: Any) -> Any:
        return self._client.call(
            "upload", self._key, method, Key=self._client.prefix + self._key, **arguments
        )

    def _release(self) -> None:
        self._ended = True
        self._buffer = bytearray()
        if self._threads is not None:
            # A part that is still being sent could arrive after the abort, and stay.
            self._threads.shutdown(wait=True, cancel_futures=True)

    def _check_open(self) -> None:
        if self._ended:
            raise ValueError(f"the upload of {self._key} has ended")
