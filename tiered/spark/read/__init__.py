"""Batch reads of the data source: plans, tasks, filters.

Other packages import `planning`, `pushdown`, `remote` and `tasks`.
"""
