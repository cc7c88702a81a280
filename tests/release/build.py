"""Builds what is released, byte for byte the same anywhere: `make dist`, or `python -m tests.release.build FOLDER`.

The wheel, the source distribution, and the bill of materials of what the image has. Nothing of this machine is in them:
files are copied without their times and owners, and archives are written in order.
"""

import base64
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from perdure import cli
from tests.page.vendor import read_lock

ROOT = Path(cli.__file__).parents[1]
EPOCH = 315_532_800  # 1980-01-01, the earliest time that a zip file has
BUILD = ("-m", "build", "--no-isolation", "--sdist", "--wheel")
GIT = shutil.which("git") or "git"
OWN_FOLDERS = (".git", ".venv", ".perdure", "node_modules", "__pycache__", "build", "dist")


def build_release(source: Path, out: Path) -> list[Path]:
    """Build from a checkout or an unpacked source distribution, and return the files in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "perdure"
        copy_sources(source, copy)
        run(copy, *BUILD, "--outdir", str(out))
        (sdist,) = out.glob("*.tar.gz")
        sdist.write_bytes(_normalize(sdist))
        (wheel,) = out.glob("*.whl")
        materials = out / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
        # The image's lock file pins all that the product runs with, by hash.
        form = ("--of", "JSON", "--output-reproducible", "--pyproject", "pyproject.toml", "-o", str(materials))
        run(copy, "-m", "cyclonedx_py", "requirements", "requirements.runtime.lock", *form)
        _add_libraries(materials)
    return [sdist, wheel, materials]


def _add_libraries(materials: Path) -> None:
    """Add the libraries of the gateway's page to the bill of materials."""
    bill = json.loads(materials.read_text(encoding="utf-8"))
    for name, library in read_lock().items():
        address = f"pkg:npm/{name}@{library['version']}"
        digest = base64.b64decode(library["integrity"].removeprefix("sha512-")).hex()
        bill["components"].append(
            {
                "bom-ref": address,
                "hashes": [{"alg": "SHA-512", "content": digest}],
                "licenses": [{"license": {"id": library["licence"]}}],
                "name": name,
                "purl": address,
                "type": "library",
                "version": library["version"],
            }
        )
        bill["dependencies"].append({"ref": address})
    materials.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")


def copy_sources(source: Path, copy: Path) -> None:
    """Copy the files that the checkout keeps, or all of an unpacked source distribution, with plain times and modes."""
    for name in list_sources(source):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_symlink():
            target.symlink_to((source / name).readlink())
            continue
        shutil.copyfile(source / name, target)
        target.chmod(0o755 if os.access(source / name, os.X_OK) else 0o644)
        os.utime(target, (EPOCH, EPOCH))


def list_sources(source: Path) -> list[str]:
    """Return the paths of the files, sorted."""
    if (source / ".git").exists():
        listed = subprocess.run(
            [GIT, "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=source,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split("\0")
        return sorted(name for name in listed if name and ((source / name).is_symlink() or (source / name).is_file()))
    found = []
    for folder, folders, names in os.walk(source):
        folders[:] = [
            each for each in folders if each not in OWN_FOLDERS and not each.endswith((".egg-info", "_cache"))
        ]
        links = [each for each in folders if Path(folder, each).is_symlink()]
        found += [str(Path(folder, name).relative_to(source)) for name in (*names, *links)]
    return sorted(name for name in found if name not in {"PKG-INFO", "setup.cfg"})


def _normalize(sdist: Path) -> bytes:
    """Return the archive with its members in order, and without times, owners and modes of this machine."""
    plain, packed = io.BytesIO(), io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = EPOCH, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=EPOCH) as zipped:
        zipped.write(plain.getvalue())
    return packed.getvalue()


def run(folder: Path, *command: str) -> str:
    """Run Python with these arguments in a folder. Raises RuntimeError with what it printed."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    made = build_release(ROOT, Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve())
    run(ROOT, "-m", "twine", "check", "--strict", *(str(path) for path in made[:2]))
    print("\n".join(str(path) for path in made))
