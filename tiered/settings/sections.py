"""The sections of ``tiered.toml``; each checks its values."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from cronsim import CronSim, CronSimError
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

from ..base.units import (
    Duration,
    PositiveDuration,
    PositiveDurationOrOff,
    PositiveSize,
    PositiveSizeOrOff,
    Size,
    format_duration,
    format_size,
)
from ..cold.object_store.options import (
    BYTES_PER_SECOND_MIN,
    PART_BYTES_MAX,
    PART_BYTES_MIN,
    check_encryption,
    check_tags,
    check_url,
    endpoint_fault,
)
from ..errors import ConfigError
from ..format.block import RAW_BYTES_MAX, RECORD_BYTES_MAX
from ..policies.policy import (
    PRESETS,
    CompactKeysRule,
    CompressRule,
    CutRule,
    LocalRetention,
    MergeRule,
    OffloadRule,
    Pin,
    Policy,
    PromoteRule,
    Retention,
    Roll,
    ScrubRule,
    StorageClass,
    TableRule,
    readable_class,
)

SERVER_URL = re.compile(r"grpc[^/]*://")  # matches the beginning of a server's URL
PRESET_EXEMPT_RULES = ("retention", "merge", "cut", "compact_keys", "scrub", "storage_class", "pin", "table")


class Section(BaseModel):
    """The base of every section: frozen values; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _plain_path(path: object) -> object:
    if path == "":
        raise ValueError('is empty; write a directory such as "./data"')
    path = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(path, str) and "\0" in path:
        raise ValueError("holds a NUL character, which no path has; take it out")
    # No shell expands ~ in a file, or in `--path=~/data`.
    return os.path.expanduser(path) if isinstance(path, str) else path  # noqa: PTH111 — a Path would drop "./"


def _check_store_path(path: str) -> str:
    """Refuse an invalid URL, and one that carries a secret; `opening` checks the URL of a server."""
    if "://" in path and not SERVER_URL.match(path):
        _check_bucket_url(path)
    return path


class StoreSettings(Section):
    """``[store]``: the local store. Sizes are in bytes."""

    path: Annotated[str, BeforeValidator(_plain_path), AfterValidator(_check_store_path)] = "./data"
    sync: Literal["always", "interval", "never", "cold"] = "interval"
    sync_every: Annotated[int | None, Field(ge=1)] = None
    sync_interval: PositiveDuration = timedelta(milliseconds=50)
    block_bytes: PositiveSize = 1 << 20
    hot_bytes: PositiveSize = 256 << 20
    max_record_bytes: PositiveSize = RECORD_BYTES_MAX
    cache_bytes: Size = 1 << 30
    cache_memory_bytes: Size = 64 << 20
    cache_path: Annotated[str | None, BeforeValidator(_plain_path)] = None
    mmap: bool = True

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        for name, limit in (("block_bytes", RAW_BYTES_MAX), ("max_record_bytes", RECORD_BYTES_MAX)):
            if getattr(self, name) > limit:
                raise ValueError(f"{name} is at most {format_size(limit)}, the limit of the format")
        if self.hot_bytes < self.block_bytes:
            raise ValueError(
                f"hot_bytes ({format_size(self.hot_bytes)}) must hold at least one block: write block_bytes "
                f"({format_size(self.block_bytes)}) or more"
            )
        return self


def _check_bucket_url(url: str | None) -> str | None:
    """Refuse an invalid URL, and one that carries a secret."""
    if url is None:
        return None
    try:
        check_url(url)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return url


def _check_endpoint(url: str | None) -> str | None:
    fault = None if url is None else endpoint_fault(url)
    if fault is not None:
        raise ValueError(fault)
    return url


class ColdSettings(Section):
    """``[cold]``: the object store. ``conditional_writes`` and ``read_back`` are ``"on"`` or ``"off"``.

    ``encryption`` applies to every object; ``storage_class`` and ``tags`` apply to data objects only. A request to S3
    that is slower than ``bytes_per_second_min`` fails like a request without an answer.
    """

    url: Annotated[str | None, AfterValidator(_check_bucket_url)] = None
    endpoint_url: Annotated[str | None, AfterValidator(_check_endpoint)] = None
    region: str | None = None
    storage_class: Annotated[str, AfterValidator(readable_class)] = "STANDARD"
    encryption: Literal["off", "AES256", "aws:kms"] = "off"
    kms_key_id: str | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    read_back: bool = False
    conditional_writes: bool = True
    part_bytes: PositiveSize = 8 << 20
    upload_threads: Annotated[int, Field(ge=1, le=64)] = 4
    bytes_per_second_min: PositiveSize = BYTES_PER_SECOND_MIN

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        try:
            check_encryption(self.encryption, self.kms_key_id)
            check_tags(tuple(self.tags.items()))
        except ConfigError as error:
            raise ValueError(str(error).replace("cold.", "")) from None
        if not PART_BYTES_MIN <= self.part_bytes <= PART_BYTES_MAX:
            raise ValueError("part_bytes is between 5MiB and 5GiB, the limits of S3")
        scheme = urlsplit(self.url or "").scheme
        for name, value in (("encryption", self.encryption != "off"), ("tags", self.tags)):
            if value and scheme not in ("", "s3", "s3a"):
                raise ValueError(
                    f"{name} is for s3:// alone, not for {scheme}://; leave it out and set its equivalent on the bucket"
                )
        return self


class PolicyTable(Section):
    """``[policies.default]`` or ``[policies."glob"]`` of the file; a rule that is not set is ``None``."""

    preset: Literal["high-performance", "cost-optimized"] | None = None
    roll: Roll | None = None
    compress: CompressRule | None = None
    offload: OffloadRule | None = None
    local_retention: LocalRetention | None = None
    retention: Retention | None = None
    merge: MergeRule | None = None
    cut: CutRule | None = None
    compact_keys: CompactKeysRule | None = None
    scrub: ScrubRule | None = None
    storage_class: StorageClass | None = None
    promote: PromoteRule | None = None
    pin: Pin | None = None
    table: TableRule | None = None

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        """Refuse contradictions between rules of one table; `provenance` warns of those with inherited rules."""
        self._check_local_rules()
        self._check_object_rules()
        retention, local, offload = self.retention, self.local_retention, self.offload
        if retention is None:
            return self
        if retention.age is not None and retention.by == "append":
            limit = f"retention.age ({format_duration(retention.age)})"
            if local and local.age is not None and local.age > retention.age:
                text = f"local_retention.age ({format_duration(local.age)})"
                raise ValueError(
                    f"{text} is longer than {limit}; write {format_duration(retention.age)} or less"
                )
            if offload and offload.after is not None and offload.after >= retention.age:
                text = f"offload.after ({format_duration(offload.after)})"
                raise ValueError(
                    f'{text} would follow {limit}, so nothing is offloaded; write less, or "off"'
                )
        if (
            retention.bytes is not None
            and local
            and local.bytes is not None
            and local.bytes > retention.bytes
        ):
            text = f"local_retention.bytes ({format_size(local.bytes)})"
            raise ValueError(
                f"{text} is more than retention.bytes ({format_size(retention.bytes)}); write that or less"
            )
        return self

    def _check_local_rules(self) -> None:
        local, offload, pin, promote = self.local_retention, self.offload, self.pin, self.promote
        if offload and offload.after is None and offload.bytes is not None:
            raise ValueError(
                'offload.bytes has no effect with offload.after = "off"; write a long time, such as after = "30d"'
            )
        if pin and pin.topic and local and (local.age is not None or local.bytes is not None):
            raise ValueError(
                'pin = "on" keeps every segment local, so that local_retention never applies; leave one of them out'
            )
        if pin and pin.age is not None and local and local.age is not None and pin.age > local.age:
            raise ValueError(
                f"pin.age ({format_duration(pin.age)}) is longer than local_retention.age "
                f"({format_duration(local.age)}); write {format_duration(local.age)} or less"
            )
        if promote and promote.reads is not None and promote.keep < promote.within:
            raise ValueError(
                f"promote.keep ({format_duration(promote.keep)}) is shorter than promote.within "
                f"({format_duration(promote.within)}); write {format_duration(promote.within)} or more"
            )

    def _check_object_rules(self) -> None:
        change, merge, retention = self.storage_class, self.merge, self.retention
        compact, offload, pin = self.compact_keys, self.offload, self.pin
        if compact and compact.after is not None and pin and pin.topic:
            raise ValueError(
                'pin = "on" keeps every segment local, and compact_keys rewrites objects that have no local file; leave one '
                "of them out"
            )
        if compact and compact.after is not None and offload and offload.after is None:
            raise ValueError(
                'compact_keys has no effect with offload.after = "off", since it rewrites objects; write a time'
            )
        if change is None or change.after is None:
            return
        text = f"storage_class.after ({format_duration(change.after)})"
        if (
            merge
            and merge.after is not None
            and merge.target_bytes is not None
            and change.after < merge.after
        ):
            raise ValueError(
                f"{text} is shorter than merge.after ({format_duration(merge.after)}), so that small objects would be "
                f"moved and never merged; write {format_duration(merge.after)} or more"
            )
        if (
            retention
            and retention.age is not None
            and retention.by == "append"
            and change.after >= retention.age
        ):
            raise ValueError(
                f"{text} would follow retention.age ({format_duration(retention.age)}), so nothing is moved; write "
                'less, or "off"'
            )

    def over(self, base: Policy) -> Policy:
        """Return `base` with this table's rules in place of its own."""
        if self.preset is not None:
            # A preset changes speed and cost; it never changes which records are deleted.
            exempt = {name: getattr(base, name) for name in PRESET_EXEMPT_RULES}
            base = PRESETS[self.preset].model_copy(update=exempt)
        rules = {name: getattr(self, name) for name in Policy.model_fields}
        return base.model_copy(update={name: rule for name, rule in rules.items() if rule is not None})


def _check_cron(text: str | None) -> str | None:
    if text is None:
        return None
    if len(text.split()) != 5:
        raise ValueError(f'{text!r} is not five cron fields; write them such as "*/5 * * * *"')
    try:
        next(CronSim(text, datetime(2000, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        raise ValueError(f'{text!r} is no cron line ({error}); write one such as "*/5 * * * *"') from None
    except StopIteration:
        raise ValueError(f"{text!r} names a day that never comes; write a date that exists") from None
    return text


def _check_address(text: str | None) -> str | None:
    host, colon, port = (text or "").rpartition(":")
    if text not in (None, "off") and not (host and colon and port.isdecimal() and int(port) < 65536):
        raise ValueError(f'{text!r} is not an address; write host:port such as "127.0.0.1:9464", or "off"')
    return text


def _parse_off(value: object) -> object:
    return None if value == "off" else value


Rate = Annotated[
    Annotated[float, Field(gt=0, allow_inf_nan=False)] | None,
    BeforeValidator(_parse_off),
    PlainSerializer(lambda rate: "off" if rate is None else rate, when_used="json"),
]


class DaemonSettings(Section):
    """``[daemon]``: the schedule of passes, their limits, and HTTP.

    Full passes run every ``interval``, or by ``cron``, a cron line in UTC. ``jitter`` shifts a pass: earlier or later
    than ``interval`` (by default up to a tenth of it), or later than ``cron`` (by default not). ``metrics`` is the address
    for HTTP; ``token_file`` holds the token that callers must send there. A daemon that stops abandons its pass after
    ``stop_deadline``. A daemon whose pass makes no progress for ``stuck_after`` reports itself as unhealthy. The two
    limits are for the whole process; ranged reads do not count, because scans wait for them.
    """

    interval: PositiveDuration = timedelta(seconds=30)
    cron: Annotated[str | None, AfterValidator(_check_cron)] = None
    jitter: Duration | None = None
    metrics: Annotated[str | None, AfterValidator(_check_address)] = None
    token_file: Annotated[str | None, BeforeValidator(_plain_path)] = None
    log: Literal["human", "json"] = "human"
    stop_deadline: PositiveDuration = timedelta(seconds=30)
    stuck_after: PositiveDuration = timedelta(minutes=15)
    upload_bytes_per_second: PositiveSizeOrOff = None
    requests_per_second: Rate = None

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.cron is not None and "interval" in self.model_fields_set:
            raise ValueError("interval and cron exclude each other; leave one of them out")
        if self.cron is None and self.jitter is not None and self.jitter > self.interval:
            raise ValueError(f"jitter is at most the interval ({format_duration(self.interval)}); write less")
        return self


class SweepSettings(Section):
    """``[sweep]``: how often a pass sweeps, how long orphans stay, and how many one run deletes at most.

    ``grace`` must be longer than any reader without a lease uses a snapshot: longer than the longest Spark job. With
    ``every = "off"`` no pass sweeps, and only ``tiered sweep`` does.
    """

    every: PositiveDurationOrOff = timedelta(days=1)
    grace: Duration = timedelta(days=1)
    objects_max: Annotated[int, Field(ge=1)] = 100_000


class EraseSettings(Section):
    """``[erase]``: until when an erasure must be done, and how long a reader's lease may delay it.

    ``within`` must be longer than the time in which passes offload, rewrite and sweep. A lease covers objects with erased
    records for ``lease_max`` at most; then its reader fails.
    """

    within: Duration = timedelta(days=30)
    lease_max: Duration = timedelta(days=1)


class FlightSettings(Section):
    """``[flight]``: options of ``tiered serve`` and of clients of a served store.

    ``token_file`` holds the token that a client sends and a server expects; the variable ``TIERED_FLIGHT_TOKEN`` wins
    over it. The server uses ``tls_certificate`` and ``tls_key``, a client trusts ``tls_roots``; all are PEM files.
    ``metrics`` is the address for HTTP of a process that serves, with ``daemon.token_file``; ``daemon.metrics`` wins over
    it.
    """

    listen: Annotated[str | None, AfterValidator(_check_address)] = None
    metrics: Annotated[str | None, AfterValidator(_check_address)] = None
    token_file: Annotated[str | None, BeforeValidator(_plain_path)] = None
    tls_certificate: Annotated[str | None, BeforeValidator(_plain_path)] = None
    tls_key: Annotated[str | None, BeforeValidator(_plain_path)] = None
    tls_roots: Annotated[str | None, BeforeValidator(_plain_path)] = None
