"""The URL and the options by which Spark's own file readers reach a bucket, if they can."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...cold.object_store.options import ColdOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Hadoop's scheme comes first. On some platforms, s3:// is a file system of their own, and s3a:// often works as well.
_SCHEMES = {"s3": ("s3a", "s3"), "s3a": ("s3a", "s3"), "gcs": ("gs",), "az": ("abfs",)}

_PAGE_INDEX = "parquet.filter.columnindex.enabled"

# The largest row group, at least: S3A joins ranges with a small gap, such as a column that is not read, up to this size only.
_JOINED_BYTES = 64 << 20

_GLOB = re.compile(r"([{}\[\]*?\\])")


@dataclass(frozen=True, slots=True)
class Connector:
    """How Spark reads the objects of a bucket.

    Attributes
    ----------
    root
        The bucket's URL in Spark's form, without a slash at the end.
    options
        Options of each read: endpoint, region and how to read from remote storage; never a credential.
    """

    root: str
    options: Mapping[str, str] = field(default_factory=dict)

    def path(self, key: str) -> str:
        """Return the path of an object for ``spark.read``, with the characters of patterns escaped."""
        return _GLOB.sub(r"\\\1", f"{self.root}/{key}")


def find_connector(spark: SparkSession, url: str, cold: ColdOptions) -> Connector | None:
    """Return this session's connector for the bucket at `url`; None if it has none.

    A session of Spark Connect does not show the file systems of its server: None, but for ``file://``.
    """
    scheme, _, rest = url.rstrip("/").partition("://")
    if scheme == "file":
        return Connector(f"file://{rest}")
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return None
    # The configuration of a read: it includes the settings of this session alone.
    configured = spark._jsparkSession.sessionState().newHadoopConf()
    for name in _SCHEMES.get(scheme, (scheme,)):
        if _has_file_system(jvm, name, configured):
            options = remote_options(configured.get)
            if name == "s3a":
                options |= s3a_options(rest.partition("/")[0], cold, os.environ, configured.get)
            return Connector(f"{name}://{rest}", options)
    return None


def _has_file_system(jvm: Any, scheme: str, configuration: Any) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, configuration)
    except Py4JJavaError:
        return False  # the scheme is unknown, or its JAR is missing
    return True


def remote_options(configured: Callable[[str], str | None]) -> dict[str, str]:
    """Return the options for few requests to remote storage; the session's own settings win. Pure.

    The page index costs a request of 64 KiB or more for each row group. Row groups are small, so the pages that it skips
    are seldom worth that request.
    """
    return {_PAGE_INDEX: "false"} if configured(_PAGE_INDEX) is None else {}


def s3a_options(
    bucket: str,
    cold: ColdOptions,
    environment: Mapping[str, str],
    configured: Callable[[str], str | None],
) -> dict[str, str]:
    """Return S3A's options for the place of a bucket and for few requests; the session's own settings win. Pure.

    Parameters
    ----------
    environment
        Variables with an endpoint, which the AWS SDKs read and S3A does not.
    configured
        Returns a setting of the session.
    """
    prefix = f"fs.s3a.bucket.{bucket}."

    def is_set(name: str) -> bool:
        return configured(f"{prefix}{name}") is not None or bool(configured(f"fs.s3a.{name}"))

    endpoint = (
        cold.endpoint_url or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    )
    region = cold.region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    options: dict[str, str] = {}
    if not is_set("vectored.read.max.merged.size"):
        options[f"{prefix}vectored.read.max.merged.size"] = str(_JOINED_BYTES)
    if endpoint and not is_set("endpoint"):
        options[f"{prefix}endpoint"] = endpoint
        options[f"{prefix}path.style.access"] = "true"
        options[f"{prefix}connection.ssl.enabled"] = str(endpoint.startswith("https:")).lower()
        region = region or "us-east-1"
    if region and not is_set("endpoint.region"):
        options[f"{prefix}endpoint.region"] = region
    return options
