"""The fast table: Spark's own Parquet reader for the bucket, our source for the tail. Needs the extra ``spark``.

Prints::

    [('ada', 3, 60), ('bob', 2, 30)]
    [('ada', 60), ('bob', 30)]
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyspark.sql import functions as f

import tiered
from tiered.spark import session, table

path = str(Path("data").absolute())
bucket = f"file://{Path('bucket').absolute()}"
schema = pa.schema([("customer", pa.string()), ("price", pa.int64())])
with tiered.open(path, cold=bucket) as store:
    orders = store.create_topic("orders", schema=schema, key="customer")
    for customer, price in [("ada", 10), ("bob", 10), ("ada", 20)]:
        orders.append({"customer": customer, "price": price})
    orders.roll()
    for _ in range(2):  # to the bucket, then off the disk
        store.tier(now=datetime.now(UTC) + timedelta(days=1))
    for customer, price in [("bob", 20), ("ada", 30)]:
        orders.append({"customer": customer, "price": price})

spark = session()
df = table(spark, "orders", path)
totals = df.groupBy("customer").agg(f.count("*"), f.sum("price")).orderBy("customer")
print([tuple(row) for row in totals.collect()])

# The data source in SQL: all of it through Python, with nothing but its name.
spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING tiered OPTIONS (topic 'orders', path '{path}')")
rows = spark.sql("SELECT customer, sum(price) FROM orders GROUP BY customer ORDER BY customer").collect()
print([tuple(row) for row in rows])
