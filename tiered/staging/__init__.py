"""Staged rows, which wait for a commit: the rows of a Spark job are in the log exactly once, or not at all.

Other packages import `ledger`, `stage` and `stage_file`.
"""
