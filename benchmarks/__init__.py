"""Benchmarks: each case against its limit or its peers, in turns, in one process. See docs/benchmarks.md."""
