"""The projects of the pairs: one for each set of options, with tools that count their calls."""

import re
from typing import Any

from perdure.testkit.model_server import ScriptedAnswer, calls, fails, says
from tests.chaos.environment import BEAT
from tests.chaos.environment import TOOL as TOOL_TOML
from tests.chaos.environment import TOOLS as HTTP_TOOLS
from tests.chaos.task import Task
from tests.crossing.project import ANSWER_KEY, CODEC_KEY, NOTICE_SECRET, CrossedProject, goal_texts
from tests.crossing.rows import RUN
from tests.e2e.projects import Json, turn_of

SLACK_SECRET = "a-secret-of-the-tests-for-slack"
TOOLS = ("look", "charge", "reserve")

CONFIG = """
[project]
name = "{queue}"

[model]
default = "scripted"

[model.batch]
size = 1
wait = "1s"

[model.providers.second]
kind = "openai"
base_url = "{model}/v1"

[prices.scripted]
input = 3
output = 15

[prices."second:scripted"]
input = 1
output = 2

[worker]
heartbeat = "{beat:g}s"
fuse_reads = {fuses}
sticky_timeout = "1s"

[limits]
max_steps = 40

[outbox]
kind = "log"

[people]
finance = ["ann", "ben"]

[gateway]
public_url = "https://perdure.example/"

[gateway.webhooks.slack]
scheme = "slack"
secret_env = "SLACK_SECRET"
people = {{ U1 = "ann" }}
"""
NOTICES = """
[[notify]]
name = "sink"
kind = "webhook"
url = "{sink}"
secret_env = "NOTICE_SECRET"
on = ["waiting", "ended", "failed", "wedged"]
"""
POLICIES = {
    "ask": '[[rule]]\nname = "charges"\ntools = ["charge"]\nwhen = "args.cents > 100"\nthen = "ask"\n',
    "review": '[[rule]]\nname = "charges"\ntools = ["charge"]\nthen = "review"\nreview = "checks:review_charge"\n',
}
CHECKS = """
def review_charge(facts: dict) -> tuple[str, str]:
    return ("ask", "it is much") if facts["args"]["cents"] > 100 else ("allow", "it is little")
"""
TYPED = "output_schema: {type: object, properties: {total: {type: integer}}, required: [total]}\n"


def agent_of(wire: str, pace: str, result: str) -> str:
    return f"{wire}-{pace}-{result}"


def write_project(project: CrossedProject, options: dict[str, str], *, model: str, sink: str, tools: str) -> None:
    queue = f"pairs-{project.folder.name}"
    on = {name: value == "on" for name, value in options.items()}
    config = CONFIG.format(queue=queue, model=model, beat=BEAT, fuses=str(on["fuse_reads"]).lower())
    for name in TOOLS:
        kind, effect, path, timeout = HTTP_TOOLS[name]
        config += TOOL_TOML.format(name=name, kind=kind, effect=effect, url=tools, path=path, timeout=timeout)
    project.write("perdure.toml", config + (NOTICES.format(sink=sink) if on["notices"] else ""))
    if rules := POLICIES.get(options["policy"]):
        project.write_all({"policy.toml": rules, "checks.py": CHECKS})
    for wire in RUN["wire"]:
        for pace in RUN["pace"]:
            for result in RUN["result"]:
                if (wire, pace) != ("openai", "batch"):
                    _write_agent(project, wire, pace, result)
    project.env |= {
        "ANTHROPIC_API_KEY": "sk-none",
        "ANTHROPIC_BASE_URL": model,
        "SLACK_SECRET": SLACK_SECRET,
        "PERDURE_TASK_QUEUE": queue,
    }
    project.env |= {"NOTICE_SECRET": NOTICE_SECRET} if on["notices"] else {}
    project.env |= {"PERDURE_CODEC_KEYS": CODEC_KEY} if on["encryption"] else {}
    project.env |= {"PERDURE_ANSWER_KEY": ANSWER_KEY} if on["signed answers"] else {}


def _write_agent(project: CrossedProject, wire: str, pace: str, result: str) -> None:
    name = agent_of(wire, pace, result)
    head = f"description: {name}\ntools: [{', '.join(TOOLS)}]\n" + (f"pace: {pace}\n" if pace == "batch" else "")
    head += "model: second:scripted\n" if wire == "openai" else ""
    head += TYPED if result == "typed" else ""
    project.write(f"agents/{name}.md", f"---\n{head}---\nYou are the {name}.\n")


GOAL = re.compile(r"pair (\d+) (asks|acts) (typed|text)\.")


def goal_of(number: int, *, asks: bool, typed: bool) -> str:
    return f"pair {number} {'asks' if asks else 'acts'} {'typed' if typed else 'text'}."


def outcome_of(number: int) -> str:
    return f"row {number} is done"


def task_of(run: str, *, asks: bool) -> Task:
    """The calls of a row's run: reads, an effect of each kind, and a question where no policy asks one."""
    charges: tuple[tuple[str, dict[str, Any]], ...] = (("charge", {"cents": 300}), ("reserve", {"order": "A-1"}))
    reads: tuple[tuple[str, dict[str, Any]], ...] = (("look", {"order": "A-1"}), ("look", {"order": "A-2"}))
    asked = ((("ask_human", {"question": "Which one?", "options": ["red", "blue"]}),),) if asks else ()
    return Task(run, (reads, *asked, charges))


def reply(body: Json) -> ScriptedAnswer:
    """What the model says, from the goal alone, on both wires and in batches."""
    goal = GOAL.search(goal_texts(body))
    if goal is None:
        return fails(400, message="no row is named")
    number, manner, result = goal.groups()
    turns = task_of("", asks=manner == "asks").turns
    if (turn := turn_of(body)) < len(turns):
        return calls(*turns[turn])
    outcome = outcome_of(int(number))
    return calls(("finish", {"outcome": outcome, "result": {"total": 3}})) if result == "typed" else says(outcome)
