"""What examples/deploy has is what its tools accept, as far as they are here."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tiered.settings import DaemonSettings

DEPLOY = ROOT / "examples" / "deploy"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """With a program that is there in place of ours, nothing is left to say; and the service is well confined."""
    for unit in DEPLOY.glob("tiered*.[st]*"):
        text = unit.read_text(encoding="utf-8").replace("/opt/tiered/bin/tiered", "/bin/true")
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    units = sorted(tmp_path.glob("*"))
    assert [unit.name for unit in units] == ["tiered-tier.service", "tiered-tier.timer", "tiered.service"]
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr.strip()) == (0, "")


def test_the_image_has_every_file_that_its_build_copies() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    for names in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for name in names.split():
            assert (ROOT / name).exists(), name
    for section, key in re.findall(r"TIERED_([A-Z]+)__([A-Z_]+)=", text):
        assert section in ("STORE", "DAEMON")
        assert section != "DAEMON" or key.lower() in DaemonSettings.model_fields
