"""The rules: which actions a partition is due for, one kind of action a module.

Other packages import `append_times`, `case`, `change_class`, `compress`, `expire`, `merge`, `partition_plan`
and `sweep`.
"""
