"""Verified ranges of objects: from memory, from the disk's cache, or from the bucket.

Other packages import `counters`, `decode_ahead`, `disk_cache`, `fetcher`, `local_copies`, `object_reader` and `plan`.
"""
