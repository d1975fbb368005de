"""The hot tier: pending rows, group commit, and recent blocks in memory.

Other packages import `accelerator`, `column_checks`, `group_commit`, `held_partition`, `partition_writer`, `pending_rows`,
`recent_blocks`, `recovery`, `row_blocks`, `row_buffer`, `row_checks`, `view`, `write_counters` and `writer_requests`.
"""
