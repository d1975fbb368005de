"""The cost of requests and storage by Amazon S3's public list prices; an estimate without transfer and tax.

Prices are in USD for us-east-1, first tier of volume, as published at `PRICES_AS_OF`. Deletions and aborted uploads are
free. The estimate omits the minimum duration and size that the cheaper classes bill (30 days for ``STANDARD_IA`` and
``ONEZONE_IA``, 90 days for ``GLACIER_IR``, 128 KiB an object), which apply to short-lived tails, and the monitoring fee of
``INTELLIGENT_TIERING``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PRICES_AS_OF = "2026-05"
MULTIPART_BYTES = 8 << 20
ROWS_REQUEST_BYTES = 16 << 20
"""The bytes of a request that reads rows of an object."""
COPY_REQUEST_BYTES = 8 << 20
"""The bytes of a request that reads an object to copy or to scrub it."""

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Prices:
    """List prices of one storage class.

    Attributes
    ----------
    gib_month_usd
        Price of a GiB stored for a month.
    writes_1000_usd, reads_1000_usd
        Price of a thousand requests: PUT, POST, LIST and each request of a multipart upload; GET and HEAD.
    retrieved_gib_usd
        Price of a GiB read, in addition to its requests.
    """

    gib_month_usd: float
    writes_1000_usd: float
    reads_1000_usd: float
    retrieved_gib_usd: float = 0.0


S3_STANDARD = Prices(0.023, 0.005, 0.0004)
S3_PRICES = {
    "STANDARD": S3_STANDARD,
    "INTELLIGENT_TIERING": S3_STANDARD,
    "STANDARD_IA": Prices(0.0125, 0.01, 0.001, 0.01),
    "ONEZONE_IA": Prices(0.01, 0.01, 0.001, 0.01),
    "GLACIER_IR": Prices(0.004, 0.02, 0.01, 0.03),
}


READS = {"GetObject", "HeadObject"}
FREE = {"DeleteObject", "DeleteObjects", "AbortMultipartUpload"}


@dataclass(frozen=True, slots=True)
class Requests:
    """Numbers of billed requests to the bucket."""

    writes: int = 0
    reads: int = 0

    @classmethod
    def of(cls, counted: Mapping[str, int]) -> Requests:
        """Return the billed requests for counts by S3 operation."""
        reads = sum(count for name, count in counted.items() if name in READS)
        return cls(sum(count for name, count in counted.items() if name not in READS | FREE), reads)

    def __add__(self, other: Requests) -> Requests:
        return Requests(self.writes + other.writes, self.reads + other.reads)


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost: ``one_off_usd`` for requests, ``monthly_usd`` for the change in a month's storage."""

    one_off_usd: float
    monthly_usd: float


# A commit reads the head, writes one page and swaps the head.
COMMIT = Requests(writes=2, reads=1)


def upload_requests(size: int) -> Requests:
    """Return the requests to upload one object of `size` bytes and check it."""
    parts = -(-size // MULTIPART_BYTES)
    return Requests(writes=1 if parts <= 1 else parts + 2, reads=1)


def rewrite_requests(size: int, count: int) -> Requests:
    """Return the most requests to write `count` objects of `size` bytes in all again without some records.

    Each object is read for its keys. Those with a hit are read twice more, and written.
    """
    reads = 6 * count + 3 * size // ROWS_REQUEST_BYTES
    return upload_requests(size) + COMMIT + Requests(reads=reads)


def estimate(requests: Requests, cold_bytes_delta: int, storage_class: str = "STANDARD") -> Cost:
    """Return the cost of `requests`, and of storing `cold_bytes_delta` more bytes (or fewer, if negative).

    An unknown storage class has the prices of STANDARD.
    """
    prices = S3_PRICES.get(storage_class, S3_STANDARD)
    one_off = requests.writes * prices.writes_1000_usd + requests.reads * prices.reads_1000_usd
    return Cost(one_off / 1000, cold_bytes_delta / _GIB * prices.gib_month_usd)


def class_change_cost(requests: Requests, size: int, source_class: str, storage_class: str) -> Cost:
    """Return the cost of moving an object of `size` bytes from one storage class into another."""
    source, target = (S3_PRICES.get(name, S3_STANDARD) for name in (source_class, storage_class))
    one_off = requests.writes * target.writes_1000_usd + requests.reads * source.reads_1000_usd
    retrieved = size / _GIB * source.retrieved_gib_usd
    return Cost(one_off / 1000 + retrieved, size / _GIB * (target.gib_month_usd - source.gib_month_usd))
