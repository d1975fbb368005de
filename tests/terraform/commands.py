"""Terraform on copies of the module, with a provider from this machine, against an AWS of our own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

MODULE = ROOT / "terraform"
MIRROR_VARIABLE = "TIERED_TERRAFORM_MIRROR"
_PROVIDER = Path("registry.terraform.io/hashicorp/aws")
_SERVICES = ("cloudwatch", "ec2", "iam", "kms", "s3", "sns", "sts")
REGION = "us-east-1"


def terraform_or_skip() -> str:
    """Return the command, or skip where there is none."""
    found = shutil.which("terraform")
    if found is None:
        pytest.skip("terraform is not on the PATH")
    return found


def _mirrors() -> list[Path]:
    home = Path.home()
    return [
        *([Path(os.environ[MIRROR_VARIABLE])] if os.environ.get(MIRROR_VARIABLE) else []),
        # Where terraform itself looks, and where images keep what they bring along.
        home / ".terraform.d" / "plugins",
        home / ".local" / "share" / "terraform" / "plugins",
        Path("/usr/local/share/terraform/plugins"),
        Path("/usr/share/terraform/plugins"),
        *sorted(Path("/opt").glob("*")),
    ]


def mirror_or_skip() -> Path:
    """Return a filesystem mirror that holds the AWS provider, or skip where there is none."""
    for mirror in _mirrors():
        if (mirror / _PROVIDER).is_dir():
            return mirror
    pytest.skip(f"no filesystem mirror holds hashicorp/aws; name one in {MIRROR_VARIABLE}")


class Terraform:
    """The module, copied, so that what terraform writes beside its files is not left in the project."""

    def __init__(self, folder: Path) -> None:
        self._command = terraform_or_skip()
        mirror = mirror_or_skip()
        self.module = folder / "terraform"
        shutil.copytree(MODULE, self.module, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
        settings = folder / "terraform.tfrc"
        block = "provider_installation {\n  filesystem_mirror {\n    path = %s\n  }\n}\n"
        settings.write_text(block % json.dumps(str(mirror)), encoding="utf-8")
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("TF_", "AWS_"))},
            "TF_CLI_CONFIG_FILE": str(settings),
            "TF_IN_AUTOMATION": "1",
            "CHECKPOINT_DISABLE": "1",
        }

    def start(self, folder: Path, *arguments: str) -> subprocess.Popen[str]:
        """Start a command in a folder of the copy."""
        return subprocess.Popen(
            [self._command, *arguments, "-no-color"],
            cwd=folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, folder: Path, *arguments: str) -> str:
        """Run a command and return what it prints; a failure is one of the test."""
        return finished(self.start(folder, *arguments))

    def use_endpoint(self, folder: Path, endpoint: str) -> None:
        """Let the provider of an example talk to a server of our own."""
        places = "\n".join(f'    {service} = "{endpoint}"' for service in _SERVICES)
        provider = f"""
provider "aws" {{
  region                      = "{REGION}"
  access_key                  = "testing"
  secret_key                  = "testing"
  max_retries                 = 5
  s3_use_path_style           = true
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_region_validation      = true

  endpoints {{
{places}
  }}
}}
"""
        (folder / "provider.tf").write_text(provider, encoding="utf-8")

    def outputs(self, folder: Path) -> dict[str, Any]:
        """Return the outputs of what was applied."""
        process = subprocess.run(
            [self._command, "output", "-json"],
            cwd=folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return {name: item["value"] for name, item in json.loads(process.stdout).items()}


def finished(process: subprocess.Popen[str]) -> str:
    """Wait for a command and return what it printed."""
    try:
        printed, _ = process.communicate(timeout=400)
    finally:
        process.kill()
    if process.returncode:
        pytest.fail(f"{' '.join(map(str, process.args))}\n{printed[-6000:]}", pytrace=False)  # type: ignore[arg-type]
    return printed
