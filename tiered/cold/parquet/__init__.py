"""A segment as one Parquet object: layout, footer, statistics, writer, memory of its pages.

Other packages import `footer`, `key_filter_writer`, `key_filters`, `layout`, `page_memory`, `statistics` and `writer`.
"""
