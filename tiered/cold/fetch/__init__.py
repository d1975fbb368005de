"""Verified ranges of objects, from memory, the disk cache or the bucket.

Other packages import `cache_folders`, `counters`, `decode_ahead`, `disk_cache`, `fetcher`, `group_rows`, `key_probe`,
`local_copies`, `object_reader`, `plan` and `verified_range`.
"""
