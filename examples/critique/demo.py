"""The worked example: serve a small site on loopback, and let an agent fetch it and write a critique.

Everything after the site is the product's own command: `perdure run "fetch web <url> and produce a 2 para critique"`.
"""

import os
import secrets
import subprocess
import sys
from pathlib import Path

from site_server import serve

# A Temporal or project that this shell has set is not the demo's: it brings its own.
ELSEWHERE = ("TEMPORAL_", "PERDURE_CONFIG", "PERDURE_HOME", "PERDURE_WORKSPACE", "PERDURE_TASK_QUEUE")
ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """The exit code of the run; the critique is printed below it."""
    home, run_id = ROOT / ".perdure", f"demo-{secrets.token_hex(4)}"
    home.mkdir(exist_ok=True)
    with serve() as address:
        # Private addresses are refused unless a project allows them; this one allows the example site alone.
        project = home / "demo.toml"
        project.write_text(f'[fetch]\nallow_hosts = ["{address.split("/")[2]}"]\n', encoding="utf-8")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(ELSEWHERE)},
            "PERDURE_CONFIG": str(project),
            "PERDURE_HOME": str(home),
            "TEMPORAL_CONFIG_FILE": str(home / "no-profile.toml"),
        }
        goal = f"fetch web {address} and produce a 2 para critique"
        command = [sys.executable, "-Pm", "perdure.cli", "run", "--id", run_id, goal]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    for path in sorted((home / "runs" / run_id / "artifacts").glob("*.md")):
        print(f"\n{path.read_text(encoding='utf-8').strip()}\n")
    print("Look at the run again, in the Web UI and in the terminal:")
    print("  .venv/bin/perdure dev")
    print("  .venv/bin/perdure list")
    return code


if __name__ == "__main__":
    sys.exit(main())
