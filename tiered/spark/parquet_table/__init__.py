"""A topic as Spark's own Parquet table over the objects, with the rows that are not in the bucket yet.

Other packages import `fast_table`.
"""
