"""Spark changes a live table by Iceberg's own commands: no object of the log is lost, the store refuses, and --take goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.table_reader import check_whole
from tests.table.place import Place
from tiered.errors import CorruptionError
from tiered.table.table_metadata import ForeignCommit

pytest.importorskip("pyiceberg")
from tests.support.engines import TableEngine


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("spark")
def test_commands_of_an_engine(place: Place) -> None:
    place.append(range(10))
    place.publish()
    _, topic_id, _, _ = place.folder.relative_to(place.bucket).parts
    table = f"h.t.`{topic_id}`.table"
    catalog = "spark.sql.catalog.h"
    engine = TableEngine(
        "spark",
        lambda _: {
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "hadoop",
            f"{catalog}.warehouse": f"file://{place.bucket}",
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        },
    )

    def objects() -> set[Path]:
        return set(place.bucket.glob("t/*/*/data/*"))

    engine.execute(f"DELETE FROM {table} WHERE `partition` = 1")
    assert engine.execute(f"SELECT count(*) FROM {table}") == [[5]]
    place.append(range(10, 20))
    with pytest.raises(ForeignCommit):
        place.publish()
    assert place.publish(take=True).version == 3
    engine.execute(f"REFRESH TABLE {table}")
    assert engine.execute(f"SELECT count(*) FROM {table}") == [[20]]

    before = objects()
    for command in (
        f"CALL h.system.expire_snapshots(table => '{table[2:]}', older_than => TIMESTAMP '2100-01-01 00:00:00')",
        f"CALL h.system.remove_orphan_files(table => '{table[2:]}')",
        f"DROP TABLE {table} PURGE",
    ):
        with pytest.raises(AssertionError, match="GC is disabled"):
            engine.execute(command)
    engine.execute(f"DROP TABLE {table}")
    assert not list(place.bucket.glob("t/*/table/metadata/*"))
    assert objects() == before
    engine.close()

    place.append(range(20, 30))
    with pytest.raises(CorruptionError, match="lacks a file"):
        place.publish()
    assert place.publish(take=True).records == 30
    assert place.check() == 30
    assert check_whole(place.folder) == 1
