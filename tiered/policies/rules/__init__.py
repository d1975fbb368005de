"""The rules, one verb a module: what a partition is due for.

Other packages import `append_times`, `case`, `change_class`, `compress`, `merge`, `partition_plan`,
`ship_tail` and `sweep`.
"""
