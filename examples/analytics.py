"""One scan, read by DuckDB, Polars and pandas as it is.

Needs duckdb, polars and pandas.

Prints::

    DuckDB: [('B6', 4, 12.0), ('UA', 4, 8.0)]
    Polars: 80.0
    pandas: {'B6': 48.0, 'UA': 32.0}
"""

import duckdb
import polars
import pyarrow as pa

import tiered

schema = pa.schema([("carrier", pa.string()), ("delay", pa.float64())])

with tiered.open("./data") as store:
    flights = store.create_topic("flights", schema=schema, key="carrier")
    flights.append_many({"carrier": ("B6", "UA")[n % 2], "delay": (12.0, 8.0)[n % 2]} for n in range(8))

    scan = flights.scan(columns=["carrier", "delay"])
    rows = duckdb.sql("select carrier, count(*), avg(delay) from scan group by carrier order by carrier")
    print("DuckDB:", rows.fetchall())
    print("Polars:", polars.DataFrame(scan)["delay"].sum())
    print("pandas:", scan.to_pandas().groupby("carrier")["delay"].sum().to_dict())
