"""The rules: pure functions that yield the actions that are due. Each module has the rule of one kind of action.

Other packages import `append_times`, `case`, `change_class`, `compress`, `expire`, `merge`, `partition_plan`
and `sweep`.
"""
