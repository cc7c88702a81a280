"""Where the commands of a page are played: a folder of a user, one shell for the whole page, a Temporal of its own."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from perdure.testkit.model_server import Script, ScriptedModel
from tests.docs.pages import BASH, Command, File, steps_of
from tests.preloaded import program

PATIENCE = 280.0  # seconds for a command
# What the person who runs the tests has set is not what the pages are about.
NOT_OURS = ("TEMPORAL_", "PERDURE_", "ANTHROPIC_", "OPENAI_", "NO_COLOR", "FORCE_COLOR", "VIRTUAL_ENV")

Word = str | Callable[["Stage"], str]


@dataclass(frozen=True)
class Step:
    """How one command is played, where it is not plain.

    `code`: with which it ends. `shows`: what its output has in it. `typed`: its standard input. `until`: it stays, and
    the next one follows when its output has this. `before`: what the reader has done by then. `swap`: what stands for a
    word of the page, made anew for each place where it stands. `as_shown`: the lines that the page prints below it
    come, in their order.
    """

    shows: str = ""
    code: int = 0
    typed: str = ""
    until: str = ""
    before: Callable[["Stage"], object] | None = None
    swap: Mapping[str, Word] = field(default_factory=dict)
    as_shown: bool = True


@dataclass(frozen=True)
class Scene:
    """A page, and what its commands need to be played in their order.

    `steps`: by the beginning of a command; a tuple has one for each command that begins so. `not_run`: commands that
    cannot run here, by their beginning, each with its reason. `files`: there from the start; a `perdure.toml` of theirs
    replaces the one that allows the example site. `dev`: `perdure dev` is up. `model`: what a scripted model
    answers; without one it is the rehearsal. `prepare` comes before the first command, `claim` after the last.
    """

    page: str
    steps: Mapping[str, Step | tuple[Step, ...]] = field(default_factory=dict)
    not_run: Mapping[str, str] = field(default_factory=dict)
    swap: Mapping[str, Word] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    dev: bool = True
    model: Script | None = None
    prepare: Callable[["Stage"], object] | None = None
    claim: Callable[["Stage"], object] | None = None

    def reason(self, command: Command) -> str | None:
        return next((why for start, why in self.not_run.items() if command.text.startswith(start)), None)


@dataclass(frozen=True)
class Done:
    code: int
    out: str  # standard output and error, as a terminal shows them


class Stage:
    """`with Stage(folder) as stage:` has a shell in `folder`, and nothing of it is left afterwards.

    `site` is the address of the example site; `outputs` are those of the page's commands, by their text.
    """

    def __init__(self, folder: Path, site: str = "") -> None:
        self.folder = folder
        self.site = site
        self.outputs: dict[str, str] = {}
        self.model: ScriptedModel | None = None
        self._aside = folder.parent / "aside"
        self._aside.mkdir()
        self._count = 0
        plain = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
        programs = [str(Path(each).parent) for each in (program("cli"), sys.executable)]
        self.env = {
            **plain,
            "PATH": os.pathsep.join([*programs, os.environ["PATH"]]),
            "HOME": str(folder.parent),
            "COLUMNS": "120",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TEMPORAL_CONFIG_FILE": str(folder.parent / "no-profile.toml"),
        }

    def __enter__(self) -> Self:
        self._shell = subprocess.Popen(
            [BASH, "--noprofile", "--norc"],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        with self._shell:
            pass
        # The embedded server ends with its last user, and writes until then.
        self.until(lambda: not any(self.folder.rglob(".perdure/server.json")), "the end of the embedded server")

    def _kill(self) -> None:
        os.killpg(self._shell.pid, signal.SIGKILL)

    @property
    def here(self) -> Path:
        """Where the shell is."""
        return Path(self.ok("pwd").strip())

    def write(self, name: str, text: str, *, added: bool = False) -> None:
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if added else "w", encoding="utf-8") as file:
            file.write(text)

    def run(self, text: str, *, typed: str = "", until: str = "") -> Done:
        """A command in the shell: what it sets (`cd`, `export`, jobs) holds for those that follow."""
        self._count += 1
        script, out, into = (self._aside / f"{self._count}.{kind}" for kind in ("sh", "out", "in"))
        script.write_text(text + "\n", encoding="utf-8")
        into.write_text(typed, encoding="utf-8")
        out.touch()
        line = f". '{script}' >'{out}' 2>&1 <'{into}'"
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{line} &\necho 0\n" if until else f"{line}\necho $?\n")
        self._shell.stdin.flush()
        with _limit(self._kill):
            code = self._shell.stdout.readline().strip()
        assert code, f"{text}\ndid not end in {PATIENCE:.0f} s; it said:\n{out.read_text(encoding='utf-8')}"
        if until:
            try:
                self.until(lambda: until in out.read_text(encoding="utf-8"), f"{until!r} from {text}")
            except AssertionError as error:
                raise AssertionError(f"{error}; it said:\n{out.read_text(encoding='utf-8')}") from None
        return Done(int(code), out.read_text(encoding="utf-8", errors="replace"))

    def ok(self, text: str, *, typed: str = "") -> str:
        """The output of a command that is not the page's, and that must not fail."""
        done = self.run(text, typed=typed)
        assert done.code == 0, f"{text}\n{done.out}"
        return done.out

    def temporal(self, *args: str) -> str:
        """What Temporal's own command says of the embedded server: in a tenth of the time that `perdure` takes."""
        at = json.loads((self.folder / ".perdure" / "server.json").read_text(encoding="utf-8"))
        return self.ok(f"{shlex.join(('temporal', *args))} --address {at['address']}")

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Waits for a condition."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, f"it never came: {what}"
            time.sleep(0.05)

    def swapped(self, text: str, words: Mapping[str, Word]) -> str:
        for word, value in words.items():
            parts = re.split(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)
            text = parts[0] + "".join((value if isinstance(value, str) else value(self)) + each for each in parts[1:])
        return text


@contextmanager
def _limit(kill: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(PATIENCE, kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def play(scene: Scene, folder: Path, site: str) -> None:
    """Everything that the page says, in its order."""
    with ExitStack() as held:
        stage = Stage(folder, site)
        if scene.model is not None:
            stage.model = held.enter_context(ScriptedModel(scene.model))
            stage.env["ANTHROPIC_BASE_URL"] = stage.model.base_url
        held.enter_context(stage)
        stage.write("perdure.toml", f'[fetch]\nallow_hosts = ["{site.split("/")[2]}"]\n')
        for name, text in scene.files.items():
            stage.write(name, text)
        if scene.dev:
            stage.run("perdure dev", until="Ctrl-C stops")
        if scene.prepare:
            scene.prepare(stage)
        left = {start: list(each) if isinstance(each, tuple) else each for start, each in scene.steps.items()}
        for each in steps_of(scene.page):
            if isinstance(each, File):
                stage.write(each.name, stage.swapped(each.text, scene.swap), added=each.added)
            elif scene.reason(each) is None:
                _command(stage, scene, each, _step(left, each))
        if scene.claim:
            scene.claim(stage)
    over = [start for start, each in left.items() if isinstance(each, list) and each]
    assert not over, f"{scene.page} has no such commands any more: {over}"


def _step(left: Mapping[str, Step | list[Step]], command: Command) -> Step:
    found = [start for start in left if command.text.startswith(start)]
    if not found:
        return Step()
    each = left[max(found, key=len)]
    if isinstance(each, list):
        assert each, f"{command.page}:{command.line}: its scene has too few steps for {command.text}"
        return each.pop(0)
    return each


def _command(stage: Stage, scene: Scene, command: Command, step: Step) -> None:
    if step.before:
        step.before(stage)
    words = {**step.swap, **scene.swap, "https://example.org": stage.site, "https://example.com": stage.site}
    text = stage.swapped(command.text, words)
    done = stage.run(text, typed=stage.swapped(step.typed, words), until=step.until)
    stage.outputs[command.text] = done.out
    said = f"{command.page}:{command.line}: {text}\n{done.out}\nexit code {done.code}"
    assert done.code == step.code, said
    assert step.shows in done.out, f"{said}, without {step.shows!r}"
    if step.as_shown:
        missing = not_shown(command.shown, done.out)
        assert missing is None, f"{said}, without the page's line\n{missing}"


def not_shown(lines: tuple[str, ...], out: str) -> str | None:
    """The first of the page's lines that did not come in this order; ids, times and other numbers may differ.

    Numbers of thousands, such as tokens, are those of a run: they differ by a fifth at most.
    """
    came = iter(out.splitlines())
    for line in lines:
        wanted = _shape(line)
        if wanted not in {"", "…"} and not any(_alike(wanted, _shape(each)) and _near(line, each) for each in came):
            return line
    return None


def _near(shown: str, came: str) -> bool:
    pairs = zip(*(re.findall(r"\d{1,3}(?:,\d{3})+", line) for line in (shown, came)), strict=False)
    counts = [tuple(int(number.replace(",", "")) for number in pair) for pair in pairs]
    return all(abs(one - other) <= max(one, other) / 5 for one, other in counts)


def _shape(line: str) -> str:
    """`261122-ab12cd34  5 min` and `261123-00000001  12 s` are alike: what has a digit in it is any such word.

    The day of the week before a date is a part of it.
    """
    words = ("#" if any(map(str.isdigit, word)) else word for word in line.split())
    return re.sub(r"# (ms|s|min|h|d)\b|\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun) #", "#", " ".join(words))


def _alike(wanted: str, came: str) -> bool:
    """`…` in the page's line stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, wanted.split("…"))), came) is not None
