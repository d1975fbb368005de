"""Write the tables of terraform/README.md and docs/deploy-aws.md anew: ``python docs/deploy.py``. A test compares them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hcl2

from tiered.policies.cost import COMMIT, Requests, estimate, upload_requests

ROOT = Path(__file__).resolve().parent.parent
MODULE = ROOT / "terraform"

TIB = 1 << 40
SEGMENT_BYTES = 256 << 20
# What zstd in Parquet leaves of raw segments differs by the data; the table is of bytes that are in the bucket.
SIZES = (TIB, 10 * TIB, 100 * TIB)
TAIL_SECONDS = 10
ACTIVE_PARTITIONS = 4


def variables() -> dict[str, Any]:
    """Return the module's variables, as parsed."""
    return _blocks("variables.tf", "variable")


def outputs() -> dict[str, Any]:
    """Return the module's outputs, as parsed."""
    return _blocks("outputs.tf", "output")


def _blocks(file: str, kind: str) -> dict[str, Any]:
    parsed = hcl2.loads((MODULE / file).read_text(encoding="utf-8"))
    return {unquoted(name): block for item in parsed[kind] for name, block in item.items()}


def unquoted(value: Any) -> str:
    """Return a parsed string or expression without what marks it as one."""
    text = str(value)
    if text.startswith('"') and text.endswith('"'):
        return str(json.loads(text))
    return text[2:-1] if text.startswith("${") and text.endswith("}") else text


def _type(value: Any) -> str:
    return re.sub(r"object\(.*?\)\s*(?=\)*$)", "object", " ".join(unquoted(value).split()), count=1)


def _default(block: dict[str, Any]) -> str:
    if "default" not in block:
        return "required"
    value = block["default"]
    plain = unquoted(value) if isinstance(value, str) else value
    return f"`{'null' if plain is None else json.dumps(plain)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def module_tables() -> Iterator[str]:
    """Yield the tables of inputs and outputs."""
    yield from ("| Input | Type | Default | Meaning |", "|---|---|---|---|")
    for name, block in variables().items():
        yield f"| `{name}` | `{_type(block['type'])}` | {_default(block)} | {_cell(unquoted(block['description']))} |"
    yield from ("", "| Output | Meaning |", "|---|---|")
    for name, block in outputs().items():
        yield f"| `{name}` | {_cell(unquoted(block['description']))} |"


def cost_table() -> Iterator[str]:
    """Yield what so many bytes in the bucket cost a month, by list prices, and what bringing them there did."""
    classes = ("STANDARD", "STANDARD_IA", "GLACIER_IR")
    names = " | ".join(f"a month in {name}" for name in classes)
    yield f"| In the bucket | {names} | offload | tails | one full scan |"
    yield "|---|" + "---:|" * (len(classes) + 3)
    for size in SIZES:
        kept = [estimate(Requests(), size, name).monthly_usd for name in classes]
        segments = size // SEGMENT_BYTES
        one = upload_requests(SEGMENT_BYTES) + COMMIT
        offload = estimate(Requests(one.writes * segments, one.reads * segments), 0).one_off_usd
        # The tail of each active partition, by the interval, for a month.
        ships = ACTIVE_PARTITIONS * 30 * 86_400 // TAIL_SECONDS
        tails = estimate(Requests(writes=2 * ships), 0).one_off_usd  # the object and the head
        scan = estimate(Requests(reads=size // (16 << 20)), 0).one_off_usd
        cells = [*(f"${value:,.0f}" for value in kept), f"${offload:,.2f}", f"${tails:,.0f}", f"${scan:,.2f}"]
        yield f"| {size // TIB} TiB | {' | '.join(cells)} |"


def _between(text: str, name: str, lines: Iterator[str]) -> str:
    begin, end = f"<!-- {name}: python docs/deploy.py -->\n", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    assert found, f"no place for {name}"
    body = "\n".join(lines)
    return f"{before}{begin}\n{body}\n\n{end}{after}"


def pages() -> dict[Path, str]:
    """Return the pages with their tables as they should be."""
    readme, deploy = MODULE / "README.md", ROOT / "docs" / "deploy-aws.md"
    return {
        readme: _between(readme.read_text(encoding="utf-8"), "inputs and outputs", module_tables()),
        deploy: _between(deploy.read_text(encoding="utf-8"), "costs", cost_table()),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
