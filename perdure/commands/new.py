"""`new`: a project of one's own, with an agent, its tools and a test."""

import re
import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

import click
from rich.markup import escape

from perdure.process.shutdown import leave
from perdure.terminal.command import complain, console, examples
from settings.problems import ProjectError, resolved

# Where each file of `project/` goes.
LAYOUT = {
    "perdure.toml": "perdure.toml",
    "agent.md": "agents/$agent.md",
    "orders.txt": "orders.py",
    "test.txt": "tests/test_$module.py",
    "README.md": "README.md",
    "pytest.ini": "pytest.ini",
    "gitignore.txt": ".gitignore",
}
MOST_NAME = 64


@click.command(epilog=examples("new orders"))
@click.argument("folder", type=click.Path(path_type=Path))
def new(folder: Path) -> None:
    """Make a project in FOLDER: an agent, two tools and a test.

    The test has a scripted model; a README says how to go on. The folder must be empty, or not there yet; the agent has
    its name.
    """
    try:
        title = resolved(folder).name
        agent = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:MOST_NAME] or "assistant"
        written = write_project(folder, {"title": title, "agent": agent, "module": agent.replace("-", "_")})
    except ProjectError as error:
        complain(str(error))
        leave(1)
    except OSError as error:
        complain(f"{folder}: {error.strerror or error}")
        leave(1)
    console.print(f"a project is in {escape(str(folder))}:")
    for path in written:
        console.print(f"  {escape(path)}", soft_wrap=True)
    console.print("go on with", style="dim")
    run = f'perdure run --agent {agent} "where is order A-1001?"'
    for line in (f"cd {shlex.quote(str(folder))}", "pytest", "perdure doctor", run):
        console.print(f"  {escape(line)}", soft_wrap=True)
    console.print("the last one needs a model: ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL of a server", style="dim")


def write_project(folder: Path, names: Mapping[str, str]) -> list[str]:
    """What was written. Raises OSError, where the folder is no empty one too."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"is {'not empty' if folder.is_dir() else 'a file'}; name an empty folder, or a new one")
    written = []
    for source, target in LAYOUT.items():
        path = folder / Template(target).substitute(names)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = files("perdure.commands").joinpath("project", source).read_text(encoding="utf-8")
        path.write_text(Template(text).safe_substitute(names), encoding="utf-8")
        written.append(str(path.relative_to(folder)))
    return written
