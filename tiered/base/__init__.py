"""Tools without a word of the domain: units, histograms, background threads, locks by key, read-ahead, worker pools, a hash.

Other packages import `backoff`, `caller`, `combiner`, `condition`, `histogram`, `iterables`, `keyed_locks`, `process_exit`,
`read_ahead`, `ticker`, `units`, `worker_pool`, `worker_thread` and `xxhash64`.
"""
