"""The worked example: serve a small site on loopback, and let an agent fetch it and write a critique.

Everything after the site is the product's own command: `perdure run "fetch web <url> and produce a 2 para critique"`.
"""

import os
import subprocess
import sys
from pathlib import Path

from site_server import serve

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """The exit code of the run; the critique is printed below it."""
    home = ROOT / ".perdure"
    home.mkdir(exist_ok=True)
    seen = set(home.glob("runs/*/artifacts/critique.md"))
    with serve() as address:
        # Private addresses are refused unless a project allows them; this one allows the example site alone.
        project = home / "demo.toml"
        project.write_text(f'[fetch]\nallow_hosts = ["{address.split("/")[2]}"]\n', encoding="utf-8")
        environment = {**os.environ, "PERDURE_CONFIG": str(project), "PERDURE_HOME": str(home)}
        goal = f"fetch web {address} and produce a 2 para critique"
        command = [sys.executable, str(ROOT / "cli.py"), "run", goal]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    written = sorted(set(home.glob("runs/*/artifacts/critique.md")) - seen)
    for path in written:
        print(f"\n{path.read_text(encoding='utf-8').strip()}\n")
    print("Look at the run again, in the Web UI and in the terminal:")
    print("  .venv/bin/perdure dev")
    print("  .venv/bin/perdure list")
    return code


if __name__ == "__main__":
    sys.exit(main())
