"""Rows that wait for a commit: what the tasks of a Spark job send is in the log wholly once, or not at all.

Other packages import `ledger`, `stage` and `stage_file`.
"""
