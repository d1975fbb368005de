"""A segment as one Parquet object: layout, footer, statistics, writer, memory of its pages.

Other packages import `footer`, `layout`, `page_memory`, `statistics` and `writer`.
"""
