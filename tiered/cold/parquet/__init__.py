"""A segment as one Parquet object: layout, footer, statistics, filters, writer, memory of its pages.

Other packages import `footer`, `key_filter_writer`, `key_filters`, `layout`, `page_memory`, `statistics`, `thrift` and
`writer`.
"""
