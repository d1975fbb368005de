"""A segment as one Parquet object: layout, footer, writing, inspection.

Other packages import `footer`, `layout`, `page_memory` and `writer`.
"""
