"""What the fault tests share: no waiting between attempts, one partition at a time, and the count of faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from botocore.retries.quota import RetryQuota
from botocore.retries.standard import ExponentialBackoff

from tests.support.tally import tally
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.format import manifest_changes
from tiered.policies.executor import Executor


def no_pause(seconds: float) -> None:
    """Wait for nothing."""


@pytest.fixture(scope="module", autouse=True)
def at_once() -> Iterator[pytest.MonkeyPatch]:
    """Repeat without a pause, in one order: so the n-th request is the same one at every run."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (Committer, StoreDocuments):
            patch.setitem(kind.__init__.__kwdefaults__, "sleep", no_pause)
        patch.setitem(Executor.__init__.__kwdefaults__, "concurrency", 1)
        patch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0)
        # Else hundreds of faults through one client use up its allowance of retries.
        patch.setattr(RetryQuota, "acquire", lambda self, amount: True)
        patch.setattr(manifest_changes, "INLINE_ENTRIES_MAX", 2)  # a few segments fill pages
        yield patch


@pytest.fixture(scope="session")
def struck() -> Iterator[Counter[str]]:
    """Faults injected, by kind."""
    counter: Counter[str] = Counter()
    yield counter
    tally("bucket faults", **counter)
