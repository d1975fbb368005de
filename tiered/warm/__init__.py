"""The warm tier: segment files on the local disk. This package writes, reads, seals and recovers them.

Other packages import `bucket_binding`, `catalog`, `document_file`, `ends`, `erasure_ledger`, `fair_lock`, `file_lock`,
`file_value_cache`, `filesystem`, `mount_check`, `old_stage`, `open_file`, `partition_directory`, `reencode`, `segment_reader`,
`segment_writer` and `writer_requests`.
"""
