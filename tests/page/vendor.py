"""Writes the libraries of the gateway's page anew, from npm: `python -m tests.page.vendor`.

A package is taken only if it has the integrity that the registry names and, for a version that was taken before, the
one of the lock. The page is served as its files are: there is no build step.
"""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from perdure.gateway.app import PAGE

VENDOR = PAGE / "vendor"
LOCK = VENDOR / "vendor.lock"
# Of each package: the version, and the file here of each of its files.
PACKAGES = {
    "preact": (
        "11.2.0",
        {"dist/preact.mjs": "preact.mjs", "hooks/dist/hooks.mjs": "hooks.mjs", "LICENSE": "LICENSE-preact"},
    ),
    "htm": ("3.1.1", {"dist/htm.mjs": "htm.mjs", "LICENSE": "LICENSE-htm"}),
}


def vendor() -> None:
    """Write the files and the lock. Raises ValueError for a package with another integrity."""
    before = read_lock() if LOCK.is_file() else {}
    lock = {}
    for name, (version, files) in PACKAGES.items():
        licence, integrity = (npm("view", f"{name}@{version}", field) for field in ("license", "dist.integrity"))
        known = before.get(name, {})
        if known.get("version") == version and known["integrity"] != integrity:
            raise ValueError(f"{name} {version}: the registry's package is not the one of the lock")
        written = _write(name, version, files, integrity)
        lock[name] = {"version": version, "licence": licence, "integrity": integrity, "sha256": written}
    LOCK.write_text(json.dumps(lock, indent=2) + "\n", encoding="utf-8")


def read_lock() -> dict[str, Any]:
    lock: dict[str, Any] = json.loads(LOCK.read_text(encoding="utf-8"))
    return lock


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def npm(*args: str) -> str:
    command = [shutil.which("npm") or "npm", *args, "--silent"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _write(name: str, version: str, files: dict[str, str], integrity: str) -> dict[str, str]:
    """Write the files of a package, and return the SHA-256 of each."""
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / npm("pack", f"{name}@{version}", "--pack-destination", folder)
        digest = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
        if f"sha512-{digest}" != integrity:
            raise ValueError(f"{name} {version}: what was packed has another integrity")
        with tarfile.open(packed) as archive:
            for source, target in files.items():
                member = archive.extractfile(f"package/{source}")
                assert member is not None, source
                (VENDOR / target).write_text(_as_served(member.read().decode()), encoding="utf-8")
    return {target: sha256_of(VENDOR / target) for target in files.values()}


def _as_served(text: str) -> str:
    """A browser finds a module by its address, and the maps of the sources are not shipped."""
    text = text.replace('from"preact"', 'from"./preact.mjs"')
    return re.sub(r"^//# sourceMappingURL=.*\n?", "", text, flags=re.MULTILINE)


if __name__ == "__main__":
    vendor()
