"""A store again from its bucket alone, as it is or as it was.

Other packages import `restore`.
"""
