"""A topic as a table in Spark. Needs the extra ``spark``, and Java or the extra ``java``.

Prints::

    [('ada', 3, 60), ('bob', 2, 30)]
"""

import json
from pathlib import Path

from pyspark.sql import functions as f

import tiered
from tiered.spark import TieredDataSource, session

# Absolute, as Spark's processes have working directories of their own.
path = str(Path("data").absolute())
with tiered.open(path) as store:
    orders = store.create_topic("orders")
    for customer, price in [("ada", 10), ("bob", 10), ("ada", 20), ("bob", 20), ("ada", 30)]:
        orders.append(json.dumps({"price": price}).encode(), key=customer)

spark = session()
spark.dataSource.register(TieredDataSource)
df = spark.read.format("tiered").option("topic", "orders").load(path)
price = f.get_json_object(df["value"].cast("string"), "$.price").cast("long")
totals = (
    df.groupBy(df["key"].cast("string").alias("customer")).agg(f.count("*"), f.sum(price)).orderBy("customer")
)
print([tuple(row) for row in totals.collect()])
