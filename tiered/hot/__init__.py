"""The hot tier: append buffers, group commit, and the recent blocks kept in memory.

Other packages import `accelerator`, `group_commit`, `partition_writer`, `pending_rows`, `recent_blocks`, `recovery`, `row_buffer`,
`row_checks`, `view`, `write_counters` and `writer_requests`.
"""
