"""The export of a topic as a table of another system.

Other packages import `iceberg`.
"""

from .iceberg import export_iceberg

__all__ = ["export_iceberg"]
