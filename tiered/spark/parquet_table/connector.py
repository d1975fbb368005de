"""Whether Spark's own file readers can reach a bucket, under which URL, and with which options."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...cold.object_store.options import ColdOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Hadoop's name comes first: what a platform calls s3:// is its own, and S3A there is often the same.
_SCHEMES = {"s3": ("s3a", "s3"), "s3a": ("s3a", "s3"), "gcs": ("gs",), "az": ("abfs",)}

_PAGE_INDEX = "parquet.filter.columnindex.enabled"

_GLOB = re.compile(r"([{}\[\]*?\\])")


@dataclass(frozen=True, slots=True)
class Connector:
    """How Spark reads the objects of a bucket.

    Attributes
    ----------
    root
        The bucket's URL, as Spark has to be given it, without a slash at the end.
    options
        For each read; where the bucket is, how to read from afar, and never a credential.
    """

    root: str
    options: Mapping[str, str] = field(default_factory=dict)

    def path(self, key: str) -> str:
        """Return the path of an object for ``spark.read``, which takes some characters for patterns."""
        return _GLOB.sub(r"\\\1", f"{self.root}/{key}")


def find_connector(spark: SparkSession, url: str, cold: ColdOptions) -> Connector | None:
    """Return how this session reads the bucket at `url`; None where nothing in it can.

    A session of Spark Connect does not say what its server can do: there, None but for ``file://``.
    """
    scheme, _, rest = url.rstrip("/").partition("://")
    if scheme == "file":
        return Connector(f"file://{rest}")
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return None
    # As each read has it: with what was set in this session alone.
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
        return False  # no such scheme, or its JAR is missing
    return True


def remote_options(configured: Callable[[str], str | None]) -> dict[str, str]:
    """Return how Parquet is read from afar, unless the session says it: by few requests. Pure.

    To leave out pages, Parquet asks for the indexes of each row group by themselves, for 64 KiB and more each. Row groups
    are small, so the pages seldom make up for that.
    """
    return {_PAGE_INDEX: "false"} if configured(_PAGE_INDEX) is None else {}


def s3a_options(
    bucket: str,
    cold: ColdOptions,
    environment: Mapping[str, str],
    configured: Callable[[str], str | None],
) -> dict[str, str]:
    """Return where S3A finds a bucket, for all that the session does not say itself. Pure.

    Parameters
    ----------
    environment
        S3A does not look there for an endpoint, as the AWS SDKs do.
    configured
        The session's own settings.
    """
    ours = f"fs.s3a.bucket.{bucket}."

    def said(name: str) -> bool:
        return configured(f"{ours}{name}") is not None or bool(configured(f"fs.s3a.{name}"))

    endpoint = (
        cold.endpoint_url or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    )
    region = cold.region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    options: dict[str, str] = {}
    if endpoint and not said("endpoint"):
        options[f"{ours}endpoint"] = endpoint
        options[f"{ours}path.style.access"] = "true"
        options[f"{ours}connection.ssl.enabled"] = str(endpoint.startswith("https:")).lower()
        region = region or "us-east-1"
    if region and not said("endpoint.region"):
        options[f"{ours}endpoint.region"] = region
    return options
