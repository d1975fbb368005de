"""PySpark imports every top-level module named ``pyspark_…`` and registers its ``DefaultSource``."""

import logging

try:
    from tiered.spark.source import TieredDataSource as DefaultSource
except ImportError as error:
    # An error here would silently disable the data sources of all such modules.
    logging.getLogger(__name__).warning("the data source 'tiered' is not available: %s", error)
else:
    __all__ = ["DefaultSource"]
