"""The restore intent in ``store.json``: it announces a restore that is under way, or records that one was abandoned.

The intent is the field ``restore`` of the document. Early releases keep the field and ignore it::

    lineage    the lineage that the restore began; if it is not the document's, the field is outdated
    of         lineage of the store that stays in charge until the restore is finished
    id         of the restore; null: it was abandoned, and the store of lineage `of` goes on
    seconds    how long the intent is valid after the last write of the document
    holder     user, host and process, as information for people
    renewals   how often it was renewed
    since_us   the time of the lineages of the first restore that began and was not finished, up to this one

A finished restore removes the field. Until then the document's lineage is only the restore's claim. The previous store
publishes nothing while the intent is valid. Once it is not, that store takes the bucket back with a higher lineage.

Safety does not depend on time: every change of the document is a compare-and-swap, and a process whose lineage is no
longer in it is fenced. Times only decide who waits for whom. They are the server's: the modification time of the document
and the server's clock. So no intent lies in the future or is valid for more than `INTENT_SECONDS_MAX`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LINEAGE = "lineage"
RESTORE = "restore"

INTENT_SECONDS = 30.0
"""How long an intent is valid unless it is renewed."""

INTENT_SECONDS_MAX = 60.0
"""How long an intent is valid at most, whatever it says."""

_TEXT_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Intent:
    """A restore as ``store.json`` describes it; see the module for the fields.

    Attributes
    ----------
    id
        None for an abandoned restore.
    since_us
        A head that was moved by a restore before this time was moved by one that was finished. 0: early releases wrote none.
    """

    lineage: int
    of: int
    id: str | None = None
    seconds: float = INTENT_SECONDS
    holder: str = ""
    renewals: int = 0
    since_us: int = 0

    @property
    def under_way(self) -> bool:
        """Whether the restore is neither finished nor abandoned."""
        return self.id is not None

    def message(self, url: str, left_seconds: float) -> str:
        """Return the message that a paused store shows."""
        return (
            f"{url} is being restored by {self.holder}: nothing is published here until that is done, or for "
            f"{left_seconds:.0f} s if it was cut short; appends and reads go on"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the value of the field."""
        if self.id is None:
            return {"lineage": self.lineage, "of": self.of, "id": None, "since_us": self.since_us}
        return {
            "lineage": self.lineage, "of": self.of, "id": self.id, "seconds": self.seconds, "holder": self.holder,
            "renewals": self.renewals, "since_us": self.since_us,
        }  # fmt: skip


def intent_of(values: dict[str, Any], lineage: int) -> Intent | None:
    """Return the intent in a document of `lineage`, each value bounded; None if there is none."""
    intent = values.get(RESTORE)
    if not isinstance(intent, dict) or intent.get("lineage") != lineage:
        return None
    of, renewals, since_us = intent.get("of"), intent.get("renewals"), intent.get("since_us")
    seconds: Any = intent.get("seconds")
    if type(of) is not int or not 1 <= of <= lineage:
        return None
    if type(seconds) not in (int, float) or not 0 < seconds <= INTENT_SECONDS_MAX:
        seconds = INTENT_SECONDS_MAX
    restore_id = intent.get("id")
    return Intent(
        lineage=lineage,
        of=of,
        id=None if restore_id is None else _printable(restore_id),
        seconds=float(seconds),
        holder=_printable(intent.get("holder")),
        renewals=renewals if type(renewals) is int and 0 <= renewals < 1 << 63 else 0,
        since_us=since_us if type(since_us) is int and 0 <= since_us < 1 << 63 else 0,
    )


def abandon_restore(values: dict[str, Any], intent: Intent) -> dict[str, Any]:
    """Return the document with which the store of lineage `intent.of` goes on; its lineage is above the restore's."""
    lineage = intent.lineage + 1
    return {
        **values,
        LINEAGE: lineage,
        RESTORE: Intent(lineage, intent.of, since_us=intent.since_us).to_json(),
    }


def _printable(value: object) -> str:
    """Return `value` as text that is safe to print on a terminal."""
    text = value if isinstance(value, str) else "somebody"
    return "".join(char if char.isprintable() else "?" for char in text[:_TEXT_CHARS_MAX])
