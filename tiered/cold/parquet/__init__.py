"""A segment as one Parquet object: layout, footer, writer, memory of its pages.

Other packages import `footer`, `layout`, `page_memory` and `writer`.
"""
