"""Runs with images, PDF and a typed result, whose workers die in each step that handles them."""

import asyncio
import json
import re
import sys
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from perdure.activities.media.store import put_upload
from perdure.activities.storage.workspace import ARTIFACTS, folder_name
from perdure.decisions.ids import request_key
from perdure.decisions.tools import FINISH
from perdure.testkit.model_server import Reply, ScriptedAnswer, calls
from perdure.testkit.rehearsal.sse import Json
from tests.chaos.auditor import Audit, audit
from tests.chaos.context import Row, ScenarioContext, row
from tests.chaos.crash_points import FUSED_POINTS, MEDIA_POINTS, Point, Trap
from tests.chaos.environment import Environment, pid_of, until
from tests.chaos.task import Task, Use, script
from tests.chaos.tool_server import ToolServer
from tests.media_files import pdf_bytes, same_image

AT_A_TIME = 8  # runs whose worker just died wait for its heartbeat, in which nobody computes
MAX_REQUESTS = 2  # of a turn: one worker dies in each run
ROOT = Path(__file__).parents[2]
SCHEMA = {
    "type": "object",
    "properties": {"seen": {"type": "array", "items": {"type": "string", "pattern": "^[0-9a-f]{64}$"}}},
    "required": ["seen"],
    "additionalProperties": False,
}
LOOK: Use = ("look", {"image": 1})
AGAIN: Use = ("read_file", {"path": f"{ARTIFACTS}/look-01.png"})
TURNS: dict[str, tuple[tuple[Use, ...], ...]] = {  # by agent
    "eyes": ((LOOK,), (AGAIN,), (("charge", {"image": 2}),)),
    "fused": ((LOOK,), (AGAIN,), (("look", {"image": 2}), ("look", {"image": 3}))),
    "camera": ((("camera__photo", {"image": 4}),), (LOOK,)),
}
AGENT = "---\nname: {name}\ntools: [{tools}]\nfuse_reads: {fuses}\n---\nDo what the goal says.\n"
PLACES: tuple[tuple[str, Point | None], ...] = (  # an agent, and where its worker dies; None: while a tool is at work
    *(("eyes", point) for point in (None, Point.mid_stream, Point.after_record, *MEDIA_POINTS)),
    *(("fused", point) for point in (Point.media_stored, *FUSED_POINTS)),
    *(("camera", point) for point in (Point.media_in_hand, Point.media_answered)),
)
BASE64 = re.compile(rb"[A-Za-z0-9+/]{200}")  # hashes have 64 characters


async def seen_and_typed(context: ScenarioContext, *, runs: int) -> Row:
    """A worker dies at each place, in each of so many runs. Each run is as one that nothing disturbs."""
    tools = ToolServer(context.seed, takes=0.5)  # long enough to die in
    async with context.environment(tools=tools, says=reply) as it, it.person():
        _write_agents(it.project.folder)
        files = {"photo.png": same_image(0), "terms.pdf": pdf_bytes(2)}
        stores = it.project.settings.stores
        attached = [{"name": name, "sha256": (await put_upload(stores, files[name], name)).sha256} for name in files]
        turn = asyncio.Semaphore(AT_A_TIME)

        async def start(run: str, agent: str) -> None:
            more = {"agent": agent, "attachments": attached, "output_schema": SCHEMA}
            await it.start(Task(run, TURNS[agent]), run, **more)

        async def undisturbed(agent: str) -> None:
            it.start_workers(f"whole-{agent}", 1)
            await start(f"whole-{agent}", agent)
            await it.handles[f"whole-{agent}"].result()

        async def killed(agent: str, point: Point | None, number: int) -> tuple[str, str]:
            run = f"{agent}-{point.name if point else 'tool'}-{number}"
            async with turn:
                workers = it.start_workers(run, 1, Trap(point) if point else None)
                await start(run, agent)
                if point is None:
                    await until(lambda: it.tools.requests[request_key(run, 1)] > 0)
                    workers.processes[0].kill()
                await until(lambda: not workers.processes[0].is_alive())
                it.fault()
                it.kills += 1
                it.in_window += it.doubtful(pid_of(workers.processes[0])) > 0
                workers.add()
                await it.handles[run].result()
            return agent, run

        await asyncio.gather(*map(undisturbed, TURNS))
        played = await asyncio.gather(*(killed(*place, number) for place in PLACES for number in range(runs)))
        found = await audit(it, late=await it.all_ended())
        whole = {agent: await _collect_facts(it, f"whole-{agent}") for agent in TURNS}
        for agent, facts in whole.items():
            _judge_files(found, agent, facts, list(files.values()))
        for agent, run in played:
            _judge_run(found, run, await _collect_facts(it, run), whole[agent])
        for run in it.handles:
            await _judge_history(found, it, run)
        return row(it, found, f"{len(PLACES)} places, {sum(len(shown(body)) for body in it.model.requests)} files sent")


def _write_agents(folder: Path) -> None:
    for name, turns in TURNS.items():
        tools = dict.fromkeys(tool for turn in turns for tool, _ in turn)
        agent = AGENT.format(name=name, tools=", ".join(tools), fuses=str(name == "fused").lower())
        (folder / "agents" / f"{name}.md").write_text(agent)
    camera = {"command": sys.executable, "args": ["-m", "tests.chaos.camera"], "env": {"PYTHONPATH": str(ROOT)}}
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"camera": camera}}))


def reply(request: Json) -> ScriptedAnswer:
    """As `script`; the result at the end has the hashes of all files that the model sees."""
    answer = script(request)
    if not isinstance(answer, Reply) or all(name != FINISH for name, _ in answer.calls):
        return answer
    seen = [sha256(data).hexdigest() for data in shown(request)]
    return calls((FINISH, {"outcome": f"{len(seen)} seen", "result": {"seen": seen}}), text=answer.text)


def shown(request: Json) -> list[bytes]:
    """The images and PDF in a request, in their order."""
    blocks = (block for message in request["messages"] for block in _flatten(message["content"]))
    return [b64decode(block["source"]["data"]) for block in blocks if "source" in block]


def _flatten(content: Any) -> Iterator[Json]:
    """Every block, those in results included."""
    for block in content if isinstance(content, list) else ():
        yield block
        yield from _flatten(block.get("content"))


@dataclass(frozen=True)
class RunFacts:
    """The facts that must be the same after a kill. The run's id is replaced, and `requests` are by turn, as JSON.

    A kill may leave the first half of a file, under a hidden name; it is no artifact.
    """

    event: Json
    requests: dict[int, list[str]]
    artifacts: dict[str, str]


async def _collect_facts(it: Environment, run: str) -> RunFacts:
    event = await it.handles[run].result()
    requests = defaultdict[int, list[str]](list)
    for body in it.model.requests:
        if f'"run": "{run}"' in body["messages"][0]["content"][0]["text"]:
            turn = sum(message["role"] == "assistant" for message in body["messages"]) + 1
            requests[turn].append(json.dumps(body, sort_keys=True).replace(run, "RUN"))
    folder = it.workspaces / folder_name(run) / ARTIFACTS
    files = await asyncio.to_thread(
        lambda: {path: path.read_bytes() for path in folder.rglob("[!.]*") if path.is_file()}
    )
    hashes = {path.relative_to(folder).as_posix(): sha256(data).hexdigest() for path, data in files.items()}
    return RunFacts(json.loads(json.dumps(event).replace(run, "RUN")), dict(requests), hashes)


def _judge_files(found: Audit, agent: str, facts: RunFacts, attached: list[bytes]) -> None:
    """Each request shows each file once: the attached ones, and that of each result so far."""
    expected = list(attached)
    for number, turn in enumerate((*TURNS[agent], ()), start=1):
        bodies = facts.requests.get(number, [])
        if [shown(json.loads(body)) for body in bodies] != [expected]:
            found.wrong(f"{agent}: turn {number} was requested {len(bodies)} times, or does not show its files")
        expected += [same_image(arguments.get("image", 1)) for _, arguments in turn]
    seen = [sha256(data).hexdigest() for data in expected]
    if facts.event["payload"].get("result") != {"seen": seen}:
        found.wrong(f"{agent}: the typed result is {facts.event['payload'].get('result')}")


def _judge_run(found: Audit, run: str, facts: RunFacts, whole: RunFacts) -> None:
    if facts.event != whole.event:
        found.wrong(f"{run} ended with {facts.event}, and undisturbed with {whole.event}")
    if facts.artifacts != whole.artifacts:
        found.wrong(f"{run} has the artifacts {facts.artifacts}, and undisturbed {whole.artifacts}")
    if set(facts.requests) != set(whole.requests):
        found.wrong(f"{run} has the turns {sorted(facts.requests)}, and undisturbed {sorted(whole.requests)}")
    for turn, bodies in facts.requests.items():
        if set(bodies) != set(whole.requests.get(turn, [])):
            found.wrong(f"{run}: turn {turn} had another request than undisturbed")
        if len(bodies) > MAX_REQUESTS:
            found.wrong(f"{run}: turn {turn} was requested {len(bodies)} times")


async def _judge_history(found: Audit, it: Environment, run: str) -> None:
    """History holds the hashes of the files, and nothing of their bytes."""
    history = b"".join([event.SerializeToString() async for event in it.handles[run].fetch_history_events()])
    if encoded := BASE64.search(history):
        found.wrong(f"{run}: history has what may be base64: {encoded[0][:80]!r}")
    raw = [same_image(number)[60:90] for number in range(5)]
    if any(data in history for data in raw):
        found.wrong(f"{run}: history has the bytes of an image")
    if sha256(same_image(0)).hexdigest().encode() not in history:
        found.wrong(f"{run}: history does not name the attached image")
