"""The S3A connector for a session of Spark.

Spark's Ivy resolves its JARs, without the bundle of all of AWS's clients (600 MB), of which S3A needs three.
"""

from __future__ import annotations

import re
from pathlib import Path

SDK = "2.35.4"


def _hadoop_version(spark: Path) -> str:
    """Return the version of the Hadoop that a PySpark ships."""
    (jar,) = spark.glob("jars/hadoop-client-api-*.jar")
    found = re.search(r"-(\d+\.\d+\.\d+)\.jar$", jar.name)
    assert found
    return found[1]


def connector(spark: Path) -> dict[str, str]:
    """Return what a session must be told to have S3A: its JAR, and the parts of the SDK that it uses.

    Parameters
    ----------
    spark
        The folder of the package ``pyspark``.
    """
    packages = [f"org.apache.hadoop:hadoop-aws:{_hadoop_version(spark)}"]
    packages += [
        f"software.amazon.awssdk:{name}:{SDK}"
        for name in ("s3", "s3-transfer-manager", "sts", "apache-client")
    ]
    packages.append("software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1")
    return {
        "spark.jars.packages": ",".join(packages),
        # Spark has another library in place of the second.
        "spark.jars.excludes": "software.amazon.awssdk:bundle,commons-logging:commons-logging",
    }
