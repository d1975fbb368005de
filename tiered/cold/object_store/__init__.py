"""The protocol of a bucket, and a backend for each kind of URL.

Other packages import `connect`, `file_store`, `options`, `probe`, `protocol`, `ranges`, `request_counters`,
`rereads` and `throttle`.
"""
