"""A segment as one Parquet object: layout, footer, writing, inspection.

Other packages import `footer`, `inspect`, `layout`, `page_memory` and `writer`.
"""
