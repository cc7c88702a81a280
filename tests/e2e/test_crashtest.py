"""`perdure crashtest`: plays of a user's agent with its worker and its server killed."""

import json
import signal
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from perdure.client.connection import connect
from perdure.devserver import DevServer, embedded_server
from perdure.features.proof.case import read_crash_case
from perdure.features.proof.contract import CrashCase, KillPoint, PlayFacts, Target
from perdure.features.proof.crashtest import CrashOptions, CrashTest, Play, PlayPlan, open_script
from perdure.features.proof.report import crash_report_to_json, print_crash_report
from perdure.features.proof.rules import find_differences, plan_kills
from perdure.settings import load_settings
from perdure.testkit.model_server import ScriptedModel, calls, says
from tests.e2e.projects import MakeProject, Project, use_model
from tests.waiting import until
from tests.workflows.test_notices import receiving

CODE = '''
import threading
import time
from pathlib import Path


def _write(line):
    with Path("ledger.txt").open("a") as ledger:
        ledger.write(line + "\\n")


def peek(order: str) -> str:
    """Look at an order."""
    _write(f"peek {order}")
    return "seen"


def reserve(order: str, idempotency_key: str) -> str:
    """Reserve an order."""
    _write(f"reserve {order}")
    return "reserved"


def pay(order: str) -> str:
    """Pay an order, later."""
    threading.Thread(target=lambda: (time.sleep(1), _write(f"pay {order}"))).start()
    return "paid"


def refund(order: str) -> str:
    """Pay an order back."""
    _write(f"refund {order}")
    return "paid back"
'''
TOOL = '[tools.{name}]\nkind = "python"\ntarget = "tools:{name}"\neffect = "{effect}"\n'
EFFECTS = {"peek": "read", "reserve": "keyed", "pay": "once", "refund": "once"}
CASE = """
goal: {tool} A-1
model:
  - calls: [{tool}: {{order: A-1}}]
  - text: done
check: cat ledger.txt
"""
CHECKS = {"pay": "sleep 2; cat ledger.txt"}  # it is late
PATIENCE = 180.0


@pytest.fixture(scope="module")
def shop(make_project: MakeProject) -> Project:
    project = make_project()
    project.write("tools.py", CODE)
    project.write("perdure.toml", "".join(TOOL.format(name=name, effect=effect) for name, effect in EFFECTS.items()))
    project.write("agents/default.md", f"---\ntools: [{', '.join(EFFECTS)}]\n---\nDo it.\n")
    for name in EFFECTS:
        project.write(f"{name}.yaml", CASE.format(tool=name))
    return project


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[DevServer, Path]]:
    home = tmp_path_factory.mktemp("crash") / "server"
    async with embedded_server(home) as server:
        yield server, home


async def play(
    shop: Project,
    server: tuple[DevServer, Path],
    root: Path,
    tool: str,
    point: KillPoint | None = None,
    check: str = "",
) -> tuple[PlayFacts, Play]:
    model = [{"calls": [{tool: {"order": "A-1"}}]}, {"text": "done"}]
    case = CrashCase.model_validate(
        {"goal": f"{tool} A-1", "model": model, "check": CHECKS.get(tool, "cat ledger.txt")}
    )
    settings = load_settings({}, shop.folder)
    plan = PlayPlan(case, open_script(case, settings), settings, root)
    address, name = server[0].address, f"crashtest-{tool}-{point.name if point else 'whole'}"
    playing = Play(plan, name, await connect(address), address, server[1], point)
    return await playing.run(PATIENCE, check or None), playing


@pytest.mark.parametrize(
    ("tool", "finding"),
    [
        ("peek", "peek is declared read, was repeated, and changed something"),
        ("reserve", "reserve is declared keyed, was repeated, and does not honour its key"),
        ("pay", "pay: declared once, and answered before it was done"),
        ("refund", None),
    ],
)
async def test_a_wrong_declaration_is_found_and_named(
    shop: Project, server: tuple[DevServer, Path], tmp_path: Path, tool: str, finding: str | None
) -> None:
    whole, whole_play = await play(shop, server, tmp_path, tool)
    assert (whole.status, whole.check) == ("completed", f"{tool} A-1\n")
    rows = plan_kills(whole_play.histories[""])
    row = next(row for row in rows if row.type == "activity_task_completed" and row.label.startswith(tool))
    killed, _ = await play(shop, server, tmp_path, tool, row.before, whole.check or "")
    assert killed.was_killed
    findings = find_differences(whole, killed)
    if finding is None:
        assert findings == ()
    else:
        assert finding in findings[0]


LEAD = "---\npeers: [clerk]\n---\nYou lead.\n"
CLERK = f"---\ntools: [{', '.join(EFFECTS)}]\n---\nYou do it.\n"
MODEL = """
from perdure.testkit.model_server import calls, says


def reply(body):
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    tool = "reserve" if "reserve" in str(body["messages"][0]) else "refund"
    if "You lead." in str(body["system"]):
        task = {"id": "act", "agent": "clerk", "instructions": f"{tool} A-1"}
        return says("done") if turn else calls(("delegate", {"subtasks": [task]}))
    act, ask = calls((tool, {"order": "A-1"})), calls(("ask_human", {"question": "which?"}))
    return [ask, act, says("done")][turn]
"""


@pytest.fixture(scope="module")
def delegating(shop: Project) -> Project:
    shop.write_all({"agents/lead.md": LEAD, "agents/clerk.md": CLERK, "lead_model.py": MODEL})
    return shop


async def play_delegation(
    shop: Project,
    server: tuple[DevServer, Path],
    root: Path,
    tool: str,
    point: KillPoint | None = None,
    check: str | None = None,
) -> tuple[PlayFacts, Play]:
    case = CrashCase.model_validate(
        {
            "goal": f"{tool} by others",
            "agent": "lead",
            "model": "lead_model:reply",
            "answers": ["this one"],  # to the subtask
            "check": "cat ledger.txt",
        }
    )
    settings = load_settings({}, shop.folder)
    plan = PlayPlan(case, open_script(case, settings), settings, root)
    address, name = server[0].address, f"crashtest-lead-{tool}-{point.name if point else 'whole'}"
    playing = Play(plan, name, await connect(address), address, server[1], point)
    return await playing.run(PATIENCE, check), playing


@pytest.mark.parametrize(
    ("tool", "finding"),
    [("reserve", "reserve is declared keyed, was repeated, and does not honour its key"), ("refund", None)],
)
async def test_a_subtask_is_killed_at_its_own_events(
    delegating: Project, server: tuple[DevServer, Path], tmp_path: Path, tool: str, finding: str | None
) -> None:
    whole, whole_play = await play_delegation(delegating, server, tmp_path, tool)
    assert (whole.status, whole.check) == ("completed", f"{tool} A-1\n")
    assert list(whole_play.histories) == ["", "1-act"]
    rows = plan_kills(whole_play.histories["1-act"], "1-act")
    row = next(row for row in rows if row.type == "activity_task_completed" and row.label.startswith(tool))
    assert row.before
    assert row.before.name.endswith("-of-1-act")
    killed, _ = await play_delegation(delegating, server, tmp_path, tool, row.before, whole.check)
    assert (killed.was_killed, killed.error) == (True, None)
    findings = find_differences(whole, killed)
    assert finding in findings[0] if finding else findings == ()
    assert row.after
    killed, _ = await play_delegation(delegating, server, tmp_path, tool, row.after, whole.check)
    assert killed.was_killed
    assert find_differences(whole, killed) == ()


async def test_the_kills_of_subtasks_are_in_the_report_by_their_names(delegating: Project) -> None:
    answers = {"model": "lead_model:reply", "answers": ["this one"], "check": "cat ledger.txt"}
    case = CrashCase.model_validate({"goal": "refund by others", "agent": "lead", **answers})
    options = CrashOptions((Target.worker,), sample=2, seed=5, jobs=2)
    report = await CrashTest(case, load_settings({}, delegating.folder), options, lambda _: None).run()
    found = crash_report_to_json(report)
    assert (found["passed"], found["kills"]) == (True, 2), found
    numbers = [event["event"] for event in found["events"] if event["subtask"] == "1-act"]
    assert numbers == list(range(1, len(numbers) + 1))
    assert any("-of-1-act" in verdict["kill"] for verdict in found["verdicts"])
    shown = Console(file=StringIO(), width=120)
    print_crash_report(shown, report)
    assert isinstance(shown.file, StringIO)
    assert f"1-act {numbers[-1]}  WorkflowExecutionCompleted" in shown.file.getvalue()


NOTIFY = '[[notify]]\nname = "ops"\nkind = "webhook"\nurl = "{url}"\nsecret_env = "OPS"\non = ["waiting", "ended"]\n'


def test_a_sample_of_the_kills_of_a_right_agent_passes_announces_and_leaves_nothing(
    shop: Project, tmp_path: Path
) -> None:
    settings = (shop.folder / "perdure.toml").read_text()
    with receiving() as receiver:
        shop.write("perdure.toml", settings + NOTIFY.format(url=receiver.url))
        options = ("--sample", "4", "--seed", "3", "--jobs", "4", "--junit", "crash.xml", "--json")
        done = shop.perdure("crashtest", "refund.yaml", *options, TMPDIR=str(tmp_path))
        shop.write("perdure.toml", settings)
    assert receiver.requests == []
    report = json.loads(done.out)
    assert (done.code, report["passed"], report["kills"]) == (0, True, 4), done
    assert {verdict["verdict"] for verdict in report["verdicts"]} <= {"same", "asked"}
    suite = ET.parse(shop.folder / "crash.xml").getroot()  # noqa: S314 - our own file
    assert (suite.get("tests"), suite.get("failures")) == ("5", "0")
    assert not any(tmp_path.iterdir())


def _processes_in(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str((process / "cwd").readlink()).startswith(str(folder)):
                found.append((process / "cmdline").read_text())
        except OSError:  # it has ended, or is another user's
            continue
    return found


async def test_an_interrupt_leaves_no_process_and_no_folder(shop: Project, tmp_path: Path) -> None:
    with shop.running("crashtest", "refund.yaml", TMPDIR=str(tmp_path)) as running:
        await until(lambda: len(_processes_in(tmp_path)) > 2)
        done = running.send_signal(signal.SIGINT)
    assert done.code == 130
    await until(lambda: not _processes_in(tmp_path) and not any(tmp_path.iterdir()))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("goal: x\n", "case.yaml: model: "),
        ("goal: x\nmodel: []\n", "case.yaml: model"),
        ("goal: x\nmodel: nowhere:answer\n", "model: nowhere:answer: ModuleNotFoundError"),
        ("- goal: x\n", "case.yaml: expected a case with a goal"),
    ],
)
def test_a_case_that_is_not_valid_is_one_line(shop: Project, text: str, error: str) -> None:
    shop.write("case.yaml", text)
    assert error in shop.perdure("crashtest", "case.yaml").error()


def test_a_question_without_an_answer_is_one_line(shop: Project, tmp_path: Path) -> None:
    shop.write("asks.yaml", "goal: x\nmodel:\n  - calls: [ask_human: {question: which?}]\n  - text: done\n")
    done = shop.perdure("crashtest", "asks.yaml", TMPDIR=str(tmp_path))
    assert done.code == 1
    assert "the play without a kill: it asks a person, and the case has no answer left: which?" in done.out


def test_a_recorded_run_becomes_a_case(shop: Project) -> None:
    script = [calls(("refund", {"order": "A-1"}), text="Plan: refund."), says("done")]
    with ScriptedModel(script) as model:
        assert shop.perdure("run", "--id", "r1", "refund A-1", **use_model(model)).code == 0
        assert shop.perdure("crashtest", "recorded.yaml", "--from-run", "r1").code == 0
        assert "File exists" in shop.perdure("crashtest", "recorded.yaml", "--from-run", "r1").error()
    case = read_crash_case(shop.folder / "recorded.yaml").model_dump(exclude_defaults=True)
    assert case["goal"] == "refund A-1"
    assert case["model"] == (
        {"text": "Plan: refund.", "calls": ({"tool": "refund", "arguments": {"order": "A-1"}},)},
        {"text": "done"},
    )
