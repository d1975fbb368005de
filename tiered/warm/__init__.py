"""The warm tier: segment files on the local disk. Written, read, sealed and recovered here.

Other packages import `bucket_binding`, `catalog`, `ends`, `fair_lock`, `file_lock`, `filesystem`, `known_files`, `mount_check`,
`open_commits`, `partition_directory`, `reencode`, `segment_reader`, `segment_writer` and `writer_requests`.
"""
