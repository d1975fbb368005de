"""The seam to a bucket: one protocol, and a backend for each kind of URL.

Other packages import `connect`, `file_store`, `options`, `probe`, `protocol`, `ranges`, `request_counters`,
`second_look` and `throttle`.
"""
