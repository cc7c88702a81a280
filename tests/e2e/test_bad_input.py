"""Bad input is one clear line and the right exit code: 1 failed, 2 usage, 3 escalated. Never a traceback."""

import itertools
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from perdure.testkit.model_server import ScriptedModel, fails
from tests.e2e.projects import MakeProject, Project, Served
from tests.preloaded import program


@dataclass(frozen=True)
class Case:
    """A command that fails with one line, in which these words are."""

    command: tuple[str, ...]
    words: tuple[str, ...]
    code: int = 1
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    def check(self, project: Project) -> None:
        project.write_all(self.files)
        done = project.perdure(*self.command, **self.env)
        assert len(done.err.splitlines()) == 1, done.err + done.out
        assert done.code == self.code, done.err
        assert all(word in done.err for word in self.words), done.err
        assert "Traceback" not in done.out


TOOL = '[tools.{name}]\nkind = "python"\neffect = "read"\ntarget = "{target}"\n'
GO = ("run", "look around")
DAILY = ("schedule", "add", "daily", "--goal", "look around")


def usage(command: tuple[str, ...], *words: str) -> Case:
    return Case(command, words, code=2)


def config(toml: str, *words: str) -> Case:
    return Case(GO, words, files={"perdure.toml": toml})


def scout(agent_file: str, *words: str) -> Case:
    return Case((*GO, "--agent", "scout"), words, files={"agents/scout.md": agent_file})


def env(env: Mapping[str, str], *words: str, command: tuple[str, ...] = GO) -> Case:
    return Case(command, words, env=env)


CASES: dict[str, Case] = {
    "no goal": usage(("run",), "GOAL", "perdure run --help"),
    "an empty goal": usage(("run", "  "), "goal", "empty"),
    "an unknown command": usage(("rum",), "rum", "perdure --help"),
    "an unknown option": usage(("run", "x", "--fast"), "--fast"),
    "a malformed context": usage((*GO, "--context", "max_steps"), "--context", "KEY=VALUE"),
    "a limit that is no number": usage((*GO, "-c", "max_steps=many"), "max_steps"),
    "no steps at all": usage((*GO, "--max-steps", "0"), "--max-steps"),
    "no scope, of which there are many": usage(("token", "create", "t"), "--scope", "runs:start, runs:read"),
    "a key of nothing": usage((*GO, "--dedupe-key", ""), "--dedupe-key", "empty"),
    "less than no money": usage((*GO, "-c", "budget_usd=-1"), "budget_usd", "greater than 0"),
    "a fork with nothing to say": usage(("fork", "r1", "--step", "0", "--say", ""), "say", "at least 1"),
    "a reason without end": usage(("cancel", "r1", "--reason", "x" * 2001), "reason", "at most 2000"),
    "an answer by a name without end": usage(("answer", "r1", "x", "--by", "x" * 201), "by", "at most 200"),
    "a run that no text names": usage(("show", "\udcff"), "RUN", "UTF-8"),
    "a schedule that no text names": usage(("schedule", "pause", "\udcff"), "NAME", "UTF-8"),
    "a run that has no name": usage(("show", ""), "RUN", "1 to 1,000 bytes"),
    "a run without a name to be resumed": usage(("resume", ""), "RUN", "1 to 1,000 bytes"),
    "a run by a name without end": usage(("cancel", "x" * 3000), "RUN", "1 to 1,000 bytes"),
    "a context whose value is no text": usage((*GO, "-c", "k=\udcff"), "--context", "UTF-8"),
    "a context whose name is no text": usage((*GO, "-c", "\udcff=1"), "--context", "UTF-8"),
    "an answer to a question that no text names": usage(("answer", "r1", "x", "--question", "\udcff"), "question"),
    "an answer to a question without end": usage(
        ("answer", "r1", "x", "--question", "x" * 201), "question_id", "at most 200"
    ),
    "a cron line that is no text": usage((*DAILY, "--cron", "\udcff"), "--cron", "UTF-8"),
    "no cron line at all": usage((*DAILY, "--cron", " "), "--cron is empty"),
    "a time zone that is no text": usage(
        (*DAILY, "--cron", "0 9 * * *", "--time-zone", "\udcff"), "--time-zone", "UTF-8"
    ),
    "a signature without a record": usage(("trace", "r1", "--sign", "key"), "--sign requires --export"),
    "a record that is none": Case(("verify", "x"), ("not a signed record", "--sign KEY"), files={"x": "hello"}),
    "a record that is not there": Case(("verify", "nothing"), ("nothing: No such file",)),
    "a public key that is none": Case(("verify", "x", "--key", "x"), ("Ed25519", "-pubout"), files={"x": "hello"}),
    "a key that is none": Case(("trace", "r1", "--export", "r", "--sign", "x"), ("Ed25519",), files={"x": "hello"}),
    "a check that is none": scout("---\naccept: yes\n---\n", "agents/scout.md, line 2: accept", "module:function"),
    "a check without a rubric": scout("---\naccept: {model: x}\n---\n", "line 2: accept", "rubric: Field required"),
    "a check that cannot be imported": Case(
        ("agents",), ("accept", "no_such"), files={"agents/scout.md": "---\naccept: no_such:check\n---\n"}
    ),
    "an unknown decision": usage(("answer", "r1", "--decision", "maybe"), "maybe"),
    "an unknown agent": Case((*GO, "--agent", "nobody"), ("no agent 'nobody'", "default")),
    "broken TOML": config("[fetch]\nallow_hosts = [\n", "perdure.toml", "line 2"),
    "TOML broken at its first line": config("fetch]\n[model]\n", "perdure.toml", "line 1"),
    "an unknown setting": config(
        "[fetch]\n\nallow_host = []\n", "perdure.toml, line 3", "fetch.allow_host", "no such setting"
    ),
    "an unknown table": config("\n[fetchs]\na = 1\n", "line 2", "fetchs", "no such setting"),
    "a table that is nearly right": config(
        "[model]\n\n[tool.look]\nkind = 'python'\n", "line 3: tool: no such setting", "(did you mean tools?)"
    ),
    "a setting that is needed and nearly right": config(
        "[prices.x]\noutput = 1\ninptu = 3\n", "line 3: prices.x.inptu", "(did you mean input?)"
    ),
    "a setting of a kind of tool that is nearly right": config(
        TOOL.format(name="look", target="tools:look") + 'aproval = "always"\n',
        "line 5: tools.look.aproval",
        "(did you mean approval?)",
    ),
    "a kind that is nearly right": config(
        '[tools.look]\nkind = "pyton"\n', "line 1: tools.look", "(did you mean python?)"
    ),
    "an effect that is nearly right": config(
        '[outbox]\nkind = "http"\nurl = "http://127.0.0.1"\neffect = "key"\n',
        "line 4: outbox.effect",
        "(did you mean keyed?)",
    ),
    "an agent that is nearly right": Case((*GO, "--agent", "defualt"), ("no agent 'defualt' (did you mean default?)",)),
    "a wrong type": config('[limits]\nmax_steps = "lots"\n', "line 2", "limits.max_steps"),
    "a number out of range": config("[limits]\nmax_steps = 0\n", "line 2", "limits.max_steps"),
    "a tool named like a built-in": config(
        TOOL.format(name="finish", target="tools:look"), "perdure.toml, line 1", "'finish'", "choose another"
    ),
    "a tool without a kind": config('[tools.t]\neffect = "read"\n', "line 1", "tools.t", "kind"),
    "a time for approvals that nobody is asked for": config(
        TOOL.format(name="look", target="tools:look") + 'approval_timeout = "1h"\n',
        "perdure.toml, line 1",
        "tools.look",
        'approval_timeout needs approval = "always"',
    ),
    "a target that does not import": config(
        TOOL.format(name="look", target="nowhere:look"), "perdure.toml, line 4: tools.look.target", "nowhere"
    ),
    "a target whose module is broken": Case(
        GO,
        ("tools.look.target", "broken_tools"),
        files={"perdure.toml": TOOL.format(name="look", target="broken_tools:look"), "broken_tools.py": "def look(:\n"},
    ),
    "an unknown tool in an agent file": scout(
        "---\ntools: [fetch, teleport]\n---\nLook.\n", "scout.md, line 2: tools", "'teleport'", "write_file"
    ),
    "an unknown peer in an agent file": scout(
        "---\npeers: [scout, guide]\n---\nLook.\n", "scout.md", "peers", "'guide'", "default, scout"
    ),
    "an agent outside with instructions": Case(
        (*GO, "--agent", "scribe"),
        ("scribe.md", "lives outside and takes no tools"),
        files={"agents/scribe.md": "---\nmailbox: true\ntools: [fetch]\n---\n"},
    ),
    "a run of an agent that lives outside": Case(
        (*GO, "--agent", "scribe"),
        ("'scribe' lives outside", "perdure mail FOLDER --agent scribe"),
        files={"agents/scribe.md": "---\nmailbox: true\n---\n"},
    ),
    "batches of a model that has none": Case(
        (*GO, "--pace", "batch"), ("model rehearsal (rehearsal) has no batches", "use pace live")
    ),
    "a pace that does not exist": usage((*GO, "--pace", "fast"), "--pace", "'live', 'batch'"),
    "a schedule of batches of a model that has none": Case(
        ("schedule", "add", "daily", "--every", "1h", "--goal", "x", "--pace", "batch"), ("has no batches",)
    ),
    "an agent file without front matter": scout("Look.\n", "scout.md", "front matter"),
    "broken front matter": scout("---\ntools: [fetch\n---\nLook.\n", "scout.md"),
    "front matter that is no table": scout("---\n- fetch\n---\nLook.\n", "scout.md"),
    "an unknown setting in front matter": scout(
        "---\ntool: [fetch]\n---\nLook.\n", "scout.md, line 2: tool: no such setting", "(did you mean tools?)"
    ),
    "a file that is not there": env({"PERDURE_CONFIG": "missing.toml"}, "missing.toml", "no such file"),
    "a model without a key": env({"PERDURE_MODEL": "claude-x"}, "claude-x", "ANTHROPIC_API_KEY"),
    "a home that is a file": Case(GO, ("taken",), files={"taken": ""}, env={"PERDURE_HOME": "taken"}),
    "a dead Temporal": env({"TEMPORAL_ADDRESS": "127.0.0.1:1"}, "127.0.0.1:1", "connection refused"),
    "an address that is none": env({"TEMPORAL_ADDRESS": "127.0.0.1:port"}, "127.0.0.1:port"),
    "a far Temporal without TLS": env({"TEMPORAL_ADDRESS": "192.0.2.1:7233"}, "192.0.2.1:7233", "TEMPORAL_TLS"),
    "a far Temporal that is called almost as this machine": env(
        {"TEMPORAL_ADDRESS": "localhost.example.com:7233"},
        "localhost.example.com:7233 is not on this machine",
        "TEMPORAL_TLS",
    ),
    "every address of this machine": env({"TEMPORAL_ADDRESS": "0.0.0.0:7233"}, "0.0.0.0", "TEMPORAL_TLS"),
    "an unknown profile": env({"TEMPORAL_PROFILE": "moon"}, "moon"),
    "a broken profile file": Case(
        GO, ("configuration",), files={"profile.toml": "[profile"}, env={"TEMPORAL_CONFIG_FILE": "profile.toml"}
    ),
    "a task queue that is no text": env(
        {"PERDURE_TASK_QUEUE": "\udcff"}, "PERDURE_TASK_QUEUE", "UTF-8", command=("list",)
    ),
    "a task queue without end": env(
        {"PERDURE_TASK_QUEUE": "q" * 1001}, "PERDURE_TASK_QUEUE", "1,000", command=("list",)
    ),
    "an address for metrics that is none": env(
        {"PERDURE_METRICS": "example.com:9464"}, "PERDURE_METRICS", "127.0.0.1:9464", "example.com", command=("worker",)
    ),
    "a worker beside a dead Temporal": env({"TEMPORAL_ADDRESS": "127.0.0.1:1"}, "worker: ", command=("worker",)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bad_input_is_one_line_and_the_right_exit_code(make_project: MakeProject, case: Case) -> None:
    case.check(make_project())


@pytest.mark.parametrize(
    ("command", "env"),
    [
        (("list",), {"PERDURE_HOME": "loop"}),
        (("list",), {"PERDURE_WORKSPACE": "loop"}),
        (("worker",), {"PERDURE_HOME": "loop"}),
        (("mail", "loop", "--agent", "default"), {}),
        (("new", "loop"), {}),
    ],
)
def test_a_link_that_leads_back_to_itself_is_one_line(
    make_project: MakeProject, command: tuple[str, ...], env: dict[str, str]
) -> None:
    project = make_project()
    (project.folder / "loop").symlink_to("loop")
    Case(command, ("loop: a loop of links",), env=env).check(project)


def run_in_bytes(project: Project, *command: str, typed: bytes = b"", **more: Any) -> Any:
    """A command in bytes."""
    env = project.environment(more.pop("env", None))
    line = [program("cli"), *command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.run(line, cwd=project.folder, env=env, input=typed, timeout=60, check=False, **pipes)


def test_a_goal_on_standard_input_has_no_byte_order_mark(make_project: MakeProject) -> None:
    project = make_project()
    done = run_in_bytes(project, "run", "-", "--dry-run", typed=b"\xef\xbb\xbf   \r\n", env={})
    assert "empty" in done.stderr.decode()


def test_a_goal_on_standard_input_that_is_no_text_is_one_line(make_project: MakeProject) -> None:
    strict = {"PYTHONIOENCODING": "utf-8:strict"}
    done = run_in_bytes(make_project(), "run", "-", typed=b"caf\xe9", env=strict)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == [
        "perdure: standard input is not UTF-8, from byte 3 (see perdure run --help)"
    ]


@pytest.mark.parametrize(
    "command", [("--help",), ("run", "--help"), ("--version",), ("completion", "bash"), ("tools",)]
)
def test_output_that_cannot_be_written_is_one_line(make_project: MakeProject, command: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        done = run_in_bytes(make_project(), *command, stdout=full)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == ["perdure: [Errno 28] No space left on device"]


def test_help_whose_reader_goes_away_is_no_fault(make_project: MakeProject) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "wb") as nobody:
        done = run_in_bytes(make_project(), "--help", stdout=nobody)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("command", [("list",), ("doctor",)])
def test_a_terminal_with_few_signs_shows_a_question_mark_for_the_others(
    make_project: MakeProject, command: tuple[str, ...]
) -> None:
    done = run_in_bytes(make_project(), *command, env={"PYTHONIOENCODING": "ascii"})
    assert b"Traceback" not in done.stderr
    assert b"?" in done.stdout
    assert done.stdout.isascii()


def test_a_port_in_use_is_one_line(make_project: MakeProject) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = str(stranger.getsockname()[1])
        project, there = make_project(), {"TEMPORAL_ADDRESS": "127.0.0.1:1"}
        Case(("dev", "--port", port), (f"port {port} cannot be used",)).check(project)
        Case(("dev", "--port", port), ("ports are for the embedded one",), env=there).check(project)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("show", "nobody"), "there is no run nobody"),
        (("watch", "nobody"), "there is no run nobody"),
        (("trace", "nobody"), "there is no run nobody"),
        (("cancel", "nobody"), "there is no run nobody"),
        (("answer", "nobody", "yes"), "there is no run nobody"),
        (("run", "x", "--id", " "), "a run id has 1 to 900 bytes"),
        (("run", "x", "--id", "x" * 901), "a run id has 1 to 900 bytes"),
        (("run", "x", "--id", "é" * 500), "a run id has 1 to 900 bytes"),
        (("run", "x", "--id", "run:x"), "a run id does not begin with run:, wf: or question:"),
        (("run", "x", "--id", "wf:x"), "a run id does not begin with run:, wf: or question:"),
        (("run", "x", "--id", "a\nb"), "a run id has printable characters only, unlike a b"),
        (("run", "x", "--id", "a\x1b[2Jb"), "a run id has printable characters only, unlike a\\x1b[2Jb"),
    ],
)
def test_a_run_that_does_not_exist_is_one_line(worked: Served, command: tuple[str, ...], words: str) -> None:
    Case(command, (words,), env={"TEMPORAL_ADDRESS": worked.address}).check(worked.project)


@contextmanager
def bad_site() -> Iterator[str]:
    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind = "application/octet-stream" if self.path == "/binary" else "text/plain"
            self.send_response(404 if self.path == "/missing" else 200)
            self.send_header("content-type", kind)
            if self.path == "/huge":
                self.send_header("content-length", str(10**12))
            self.end_headers()
            pieces = itertools.repeat(b"on and on " * 1000) if self.path == "/endless" else iter([bytes(range(256))])
            for piece in pieces:
                try:
                    self.wfile.write(piece)
                except OSError:
                    return  # the reader has had enough

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 - the base class's name

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


BAD_PAGES = {
    "missing": "404 Not Found",
    "endless": "larger than the cap of 5,242,880 bytes",
    "huge": "larger than the cap of 5,242,880 bytes",
    "private": "not a public address",
    "metadata": "metadata services are never fetched",
}


@pytest.fixture(scope="module")
def fetched(make_project: MakeProject) -> dict[str, Any]:
    """What a rehearsal run makes of each bad page."""
    with bad_site() as address:
        project = make_project()
        project.write("perdure.toml", f'[fetch]\nallow_hosts = ["{address.split("/")[2]}"]\n')
        pages = {name: f"{address}/{name}" for name in (*BAD_PAGES, "binary")}
        pages |= {"private": "http://10.0.0.1/admin", "metadata": "http://169.254.169.254/latest/meta-data"}

        def run(name: str) -> Any:
            return project.perdure("run", "--json", "--id", name, f"fetch {pages[name]} and write a critique")

        with project.running("dev") as dev, ThreadPoolExecutor(3) as pool:
            there = dev.until("Temporal").split()[1]
            dev.until("Ctrl-C")
            project.env["TEMPORAL_ADDRESS"] = there
            return dict(zip(pages, pool.map(run, pages), strict=True))


@pytest.mark.parametrize("page", BAD_PAGES)
def test_a_page_that_cannot_be_had_ends_the_run_escalated(fetched: dict[str, Any], page: str) -> None:
    done = fetched[page]
    assert (done.code, done.err) == (3, "")
    payload = json.loads(done.out)["event"]["payload"]
    assert payload["reason"] == "asked"
    assert len(payload["detail"].splitlines()) == 1
    assert BAD_PAGES[page] in payload["detail"]


def test_a_binary_page_is_described_and_the_run_completes(fetched: dict[str, Any]) -> None:
    done = fetched["binary"]
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["status"] == "completed"


def test_a_refused_key_is_a_typed_failure(make_project: MakeProject) -> None:
    with ScriptedModel([fails(401, message="invalid x-api-key")]) as model:
        there = {"ANTHROPIC_BASE_URL": model.base_url, "ANTHROPIC_API_KEY": "sk-canary"}
        done = make_project().perdure("run", "--json", "write", **there)
    assert (done.code, done.err) == (1, "")
    said = json.loads(done.out)
    assert (said["status"], said["kind"]) == ("failed", "ModelRefused")
    assert "sk-canary" not in done.out
