"""What ``store.json`` of a bucket says of a restore: that it is under way, or that it was given up.

The document has a field ``restore`` then, which releases before this one keep and do not look at::

    lineage    the one that the restore began, which is the document's; else the field is of an earlier time
    of         lineage of the store that is in charge unless the restore is finished
    id         of the restore; null: it was given up, and the store of lineage `of` goes on
    seconds    for how long it holds from when the document was last written
    holder     for people: user, host, process
    renewals   how often it was renewed

A restore that is finished takes the field away. Until then the document's lineage is its claim alone: the store before
it publishes nothing as long as the intent holds, and takes the bucket back, by a higher lineage, once it does not.
No promise rests on time: whoever changes the document does so by compare-and-swap, and who is not in it any more is
fenced. Times only say who waits for whom. They are the server's, the modification time of the document and what the
server takes for now, so nothing that the field says can lie in the future or hold for more than `BELIEVED_SECONDS_MAX`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LINEAGE = "lineage"
RESTORE = "restore"

HOLDS_SECONDS = 30.0
"""For how long an intent holds unless it is renewed."""

BELIEVED_SECONDS_MAX = 60.0
"""For how long one is believed at most, whatever it says."""

_TEXT_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Intent:
    """A restore as ``store.json`` has it; see the module for the fields.

    Attributes
    ----------
    id
        None for one that was given up.
    """

    lineage: int
    of: int
    id: str | None = None
    seconds: float = HOLDS_SECONDS
    holder: str = ""
    renewals: int = 0

    @property
    def under_way(self) -> bool:
        """Whether the restore was neither finished nor given up."""
        return self.id is not None

    def told(self, url: str, left_seconds: float) -> str:
        """Return what a running store says of it."""
        return (
            f"{url} is being restored by {self.holder}: nothing is published here until that is done, or for "
            f"{left_seconds:.0f} s if it was cut short; appends and reads go on"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the field."""
        if self.id is None:
            return {"lineage": self.lineage, "of": self.of, "id": None}
        return {
            "lineage": self.lineage, "of": self.of, "id": self.id, "seconds": self.seconds, "holder": self.holder,
            "renewals": self.renewals,
        }  # fmt: skip


def intent_of(values: dict[str, Any], lineage: int) -> Intent | None:
    """Return what a document of `lineage` says of a restore, each value bounded; None where it says nothing."""
    found = values.get(RESTORE)
    if not isinstance(found, dict) or found.get("lineage") != lineage:
        return None
    of, renewals = found.get("of"), found.get("renewals")
    seconds: Any = found.get("seconds")
    if type(of) is not int or not 1 <= of <= lineage:
        return None
    if type(seconds) not in (int, float) or not 0 < seconds <= BELIEVED_SECONDS_MAX:
        seconds = BELIEVED_SECONDS_MAX
    named = found.get("id")
    return Intent(
        lineage=lineage,
        of=of,
        id=None if named is None else _text(named),
        seconds=float(seconds),
        holder=_text(found.get("holder")),
        renewals=renewals if type(renewals) is int and 0 <= renewals < 1 << 63 else 0,
    )


def given_up(values: dict[str, Any], intent: Intent) -> dict[str, Any]:
    """Return the document by which the store of lineage `intent.of` goes on; all that the restore wrote is of a lower one."""
    lineage = intent.lineage + 1
    return {**values, LINEAGE: lineage, RESTORE: Intent(lineage, intent.of).to_json()}


def _text(value: object) -> str:
    """Return what may go to a terminal, of anything."""
    text = value if isinstance(value, str) else "somebody"
    return "".join(char if char.isprintable() else "?" for char in text[:_TEXT_CHARS_MAX])
