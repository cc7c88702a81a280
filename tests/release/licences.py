"""The licences of what the product runs with: the list in `docs/licences.md`, and those that are allowed."""

import json
import re
import subprocess
import sys
from pathlib import Path

from perdure import cli
from tests.page.vendor import read_lock

ROOT = Path(cli.__file__).parents[1]
# None of them asks for more of a program that uses the package than to keep its notice; MPL-2.0 asks for the source of
# changed files of the package itself.
ALLOWED = {
    "3-Clause BSD License",
    "Apache Software License",
    "Apache-2.0",
    "BSD License",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CNRI-Python",
    "ISC License (ISCL)",
    "MIT",
    "MIT License",
    "MIT-0",
    "MIT-CMU",
    "Mozilla Public License 2.0 (MPL 2.0)",
    "PSF-2.0",
}
HEAD = """# Licences

Perdure is under the [MIT licence](../LICENSE). This page lists what an image of it has, as `requirements.runtime.lock`
pins it, with the licence that each package names; `make licences` writes it. The tests refuse a licence that is not on
the list in `tests/release/licences.py`. Each release has both lists as a bill of materials (CycloneDX).

| package | version | licence |
| --- | --- | --- |
"""
PAGE_HEAD = """
The gateway's page has these libraries from npm as files of its own, each with the text of its licence
(`perdure/gateway/page/vendor`); `python -m tests.page.vendor` writes them, and `vendor.lock` there has their hashes.

| library | version | licence |
| --- | --- | --- |
"""


def list_licences() -> list[tuple[str, str, str]]:
    """Return name, version and licence of each package of the image's lock file, as installed here."""
    lock = (ROOT / "requirements.runtime.lock").read_text(encoding="utf-8")
    names = re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)
    command = [
        sys.executable,
        "-m",
        "piplicenses",
        "--from=mixed",
        "--with-system",
        "--format=json",
        "--packages",
        *names,
    ]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rows = [(row["Name"].lower().replace("_", "-"), row["Version"], row["License"]) for row in found]
    return sorted(rows)


def list_vendored() -> list[tuple[str, str, str]]:
    """Return name, version and licence of each library of the gateway's page."""
    return sorted((name, row["version"], row["licence"]) for name, row in read_lock().items())


def refused(licence: str) -> bool:
    """Return whether a licence is not allowed: none of several to choose from, or one of several that add up."""
    if " OR " in licence or "; " in licence:  # classifiers of several licences are a choice
        return all(refused(each) for each in re.split(r" OR |; ", licence))
    return not all(each in ALLOWED for each in licence.split(" AND "))


def licences_page() -> str:
    packages, libraries = (
        "".join(f"| {' | '.join(row)} |\n" for row in rows) for rows in (list_licences(), list_vendored())
    )
    return HEAD + packages + PAGE_HEAD + libraries


if __name__ == "__main__":
    (ROOT / "docs" / "licences.md").write_text(licences_page(), encoding="utf-8")
