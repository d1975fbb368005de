"""`can_iterate`: whether a value can be gone through."""

from __future__ import annotations


def can_iterate(value: object) -> bool:
    """Return whether `value` can be gone through. An array of NumPy without a dimension is an `Iterable`, and cannot."""
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True
