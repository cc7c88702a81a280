"""`perdure new`."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

import click
from rich.markup import escape

from perdure.decisions.errors import ReportedError
from perdure.extras import install_command
from perdure.process.streams import exit_now
from perdure.settings.problems import resolve_path
from perdure.terminal.command import console, format_examples, print_error

# The target of each file of `project/`.
PROJECT_LAYOUT = {
    "perdure.toml": "perdure.toml",
    "agent.md": "agents/$agent.md",
    "orders.txt": "orders.py",
    "test.txt": "tests/test_$module.py",
    "crash.yaml": "tests/crash.yaml",
    "policy.toml": "policy.toml",
    "policy.yaml": "tests/policy.yaml",
    "guide.txt": "AGENTS.md",
    "README.md": "README.md",
    "pytest.ini": "pytest.ini",
    "gitignore.txt": ".gitignore",
}
MAX_GENERATED_NAME = 64


@click.command("new", epilog=format_examples("new orders"))
@click.argument("folder", type=click.Path(path_type=Path))
def new_command(folder: Path) -> None:
    """Create a project in FOLDER: an agent, tools, a policy, tests.

    The tests use a scripted model; AGENTS.md tells coding agents how to work on the project. FOLDER must be empty or
    new, and gives the agent its name.
    """
    try:
        title = resolve_path(folder).name
        agent = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:MAX_GENERATED_NAME] or "assistant"
        written = write_project(folder, {"title": title, "agent": agent, "module": agent.replace("-", "_")})
    except ReportedError as error:
        print_error(str(error))
        exit_now(1)
    except OSError as error:
        print_error(f"{folder}: {error.strerror or error}")
        exit_now(1)
    console.print(f"created a project in {escape(str(folder))}:")
    for path in written:
        console.print(f"  {escape(path)}", soft_wrap=True)
    console.print("next steps:", style="dim")
    run = f'perdure run --agent {agent} "where is order A-1001?"'
    tests = ("pytest", "perdure policy test tests/policy.yaml", "perdure crashtest tests/crash.yaml --sample 10")
    for line in (f"cd {shlex.quote(str(folder))}", *_runnable(tests), "perdure doctor", run):
        console.print(f"  {escape(line)}", soft_wrap=True)
    console.print("the last step needs a model: set ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL", style="dim")


def _runnable(commands: Iterable[str]) -> Iterator[str]:
    """Yield the commands, after those that install what they need and this environment lacks."""
    if find_spec("anthropic") is None:
        yield install_command("all")
    if find_spec("pytest") is None:
        yield "pip install pytest"
    yield from commands


def write_project(folder: Path, names: Mapping[str, str]) -> list[str]:
    """Write the project, and return the paths. Raises OSError, also if the folder is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(
            f"{'it is not empty' if folder.is_dir() else 'it is a file'}; choose an empty or new folder"
        )
    written = []
    for source, target in PROJECT_LAYOUT.items():
        path = folder / Template(target).substitute(names)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = files("perdure.commands").joinpath("project", source).read_text(encoding="utf-8")
        path.write_text(Template(text).safe_substitute(names), encoding="utf-8")
        written.append(str(path.relative_to(folder)))
    return written
