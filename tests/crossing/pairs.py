"""`python -m tests.crossing.pairs`: each pair of options and doors in some run. Exits 1 if an invariant is broken."""

import argparse
import asyncio
import json
import secrets
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from random import Random
from typing import NoReturn

from temporalio.client import Client

from perdure.client.runs import wait_for_run_end
from perdure.process.streams import exit_now
from perdure.testkit.model_server import ScriptedModel
from tests.chaos.auditor import audit
from tests.chaos.tool_server import ToolServer
from tests.conftest import server
from tests.crossing.doors import DOORS, must_be_readable, read_by_mcp
from tests.crossing.pairs_place import ANSWERS, STARTS, Place, answer_until_closed
from tests.crossing.pairs_project import agent_of, goal_of, outcome_of, reply, task_of, write_project
from tests.crossing.project import CrossedProject, make_person, take_all
from tests.crossing.rows import MCP, PROJECT, RUN, Row, make_rows
from tests.crossing.shapes import Crossing
from tests.e2e.test_timestamps import openssl
from tests.waiting import until

EARLY = {"limit.historyCount.suggestContinueAsNew": 40}  # events, of which each of these runs has more
AT_A_TIME = 6
ENDS_WITHIN = 240.0  # seconds, on a busy machine, with all kills


@dataclass
class Outcome:
    """What became of a row."""

    row: Row
    run_id: str = ""
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Kit:
    """What all projects share: servers of Temporal, by their rotation, a model, and a sink of notices."""

    home: Path
    servers: dict[str, Client]
    model: ScriptedModel
    sink: tuple[str, list[bytes]]
    seed: int
    totals: Counter[str]


async def play(rows: Sequence[Row], seed: int) -> tuple[list[Outcome], Counter[str]]:
    """What became of the rows, and how much happened in them."""
    home = Path(tempfile.mkdtemp(prefix="pairs-"))
    print(f"seed {seed}; {len(rows)} rows; projects and logs in {home}\n", flush=True)
    outcomes: list[Outcome] = []
    async with AsyncExitStack() as held:
        servers = {
            name: (await held.enter_async_context(await server(**config))).client
            for name, config in (("late", {}), ("early", EARLY))
        }
        kit = Kit(
            home, servers, held.enter_context(ScriptedModel(reply)), held.enter_context(take_all()), seed, Counter()
        )
        for _, group in groupby(rows, key=lambda row: row.project):
            together = [Outcome(row) for row in group]
            print("project with " + _describe_row(together[0].row, PROJECT), flush=True)
            try:
                await _play_project(kit, together)
            except Exception as error:  # noqa: BLE001 - the others are worth playing all the same
                for outcome in together:
                    outcome.violations.append("".join(traceback.format_exception(error)))
            for outcome in together:
                print(_line(outcome), flush=True)
            outcomes += together
    return outcomes, kit.totals


async def _play_project(kit: Kit, outcomes: list[Outcome]) -> None:
    """The runs of one project at once; then the audit; then each run is read through its door."""
    options = {name: outcomes[0].row[name] for name in PROJECT}
    project = CrossedProject(kit.home / f"from-{outcomes[0].row.number}")
    (project.folder / "logs").mkdir(parents=True)
    address = kit.servers[options["rotation"]].service_client.config.target_host
    project.env["TEMPORAL_ADDRESS"] = address
    async with AsyncExitStack() as stack:
        tools = stack.enter_context(ToolServer(kit.seed, takes=0.3))
        write_project(project, options, model=kit.model.base_url, sink=kit.sink[0], tools=tools.base_url)
        await asyncio.to_thread(_make_record_key, project.folder)
        place = stack.enter_context(await Place.open(project, kit.seed, tools, kit.model))
        await place.start_worker()
        serving = project.running("gateway", "--port", "0", "--log-file", str(project.folder / "gateway.log"))
        gateway = stack.enter_context(serving).until("gateway").split()[1]
        people = {
            name: await stack.enter_async_context(make_person(project, gateway, name)) for name in ("root", "ann")
        }
        it = Crossing(project, place.client, address, gateway, people)
        await stack.enter_async_context(place.person())
        gate = asyncio.Semaphore(AT_A_TIME)
        await asyncio.gather(*(_play_row(it, place, outcome, gate) for outcome in outcomes))
        ended = [outcome for outcome in outcomes if not outcome.violations]
        await _judge(kit, place, outcomes)
        await asyncio.gather(*(_read(it, outcome, gate) for outcome in ended))
        if options["notices"] == "on":
            await _judge_notices(kit, ended)


def _make_record_key(folder: Path) -> None:
    openssl(folder, "genpkey", "-algorithm", "ed25519", "-out", "record.key")
    openssl(folder, "pkey", "-in", "record.key", "-pubout", "-out", "record.pub")


async def _play_row(it: Crossing, place: Place, outcome: Outcome, gate: asyncio.Semaphore) -> None:
    row = outcome.row
    async with gate:
        began = time.monotonic()
        try:
            async with asyncio.timeout(ENDS_WITHIN):
                await _run(it, place, outcome)
        except Exception as error:  # noqa: BLE001 - a violation of this row
            state = await it.state_of(outcome.run_id) if outcome.run_id else None
            outcome.violations.append(f"{''.join(traceback.format_exception(error))[-1500:]} {state}"[:3000])
        outcome.seconds = time.monotonic() - began
    if not outcome.run_id:
        outcome.violations.append(f"no run began by {row['start']}")


async def _run(it: Crossing, place: Place, outcome: Outcome) -> None:
    row = outcome.row
    asks, agent = row["policy"] == "none", agent_of(row["wire"], row["pace"], row["result"])
    goal = goal_of(row.number, asks=asks, typed=row["result"] == "typed")
    outcome.run_id = run_id = await STARTS[row["start"]](it, row.number, agent, goal)
    place.add(task_of(run_id, asks=asks))
    async with asyncio.TaskGroup() as group:
        if row["killed"] == "in a call":
            group.create_task(place.kill_in_a_call(run_id))
        question = await it.wait_for_question(run_id)
        if row["killed"] == "at a question":
            await place.kill_worker()
        await answer_until_closed(it, run_id, question, ANSWERS[row["answer"]])
    end = await wait_for_run_end(it.client, run_id)
    assert end.status == "completed", end


async def _judge(kit: Kit, place: Place, outcomes: Sequence[Outcome]) -> None:
    """The auditor's findings, each to the row whose run it names."""
    late = [outcome.run_id for outcome in outcomes if outcome.run_id and outcome.violations]
    found = await audit(place, late=late)
    kit.totals.update(kills=place.kills, effects=found.effects, doubts=found.in_doubt, rotations=found.rotations)
    if outcomes[0].row["rotation"] == "early" and not found.rotations:
        found.wrong("no run was rotated")
    for violation in found.violations:
        named = next((each for each in outcomes if each.run_id and each.run_id in violation), outcomes[0])
        named.violations.append(violation)


async def _read(it: Crossing, outcome: Outcome, gate: asyncio.Semaphore) -> None:
    door, expected = outcome.row["door"], outcome_of(outcome.row.number)
    async with gate:
        try:
            if door == MCP:
                text, tells = json.dumps(await read_by_mcp(it, {"run": outcome.run_id})), True
            else:
                text, tells = await DOORS[door].read(it, outcome.run_id), DOORS[door].tells
            must_be_readable(text)
            if tells and expected not in " ".join(text.split()):
                outcome.violations.append(f"{door} does not tell {expected!r}: {text[-1500:]}")
        except Exception as error:  # noqa: BLE001 - a violation of this row
            outcome.violations.append(f"{door}: {''.join(traceback.format_exception(error))[-2000:]}")


async def _judge_notices(kit: Kit, outcomes: Sequence[Outcome]) -> None:
    """Each end was announced once."""

    def times(run_id: str) -> int:
        notices = [json.loads(body) for body in list(kit.sink[1])]
        ends = [row for row in notices if row["type"] in ("run.ended", "run.failed")]
        return sum(row["data"]["run_id"] == run_id for row in ends)

    for outcome in outcomes:
        try:
            await until(lambda run_id=outcome.run_id: times(run_id) > 0)  # type: ignore[misc]
        except AssertionError:
            outcome.violations.append("its end was not announced")
        if times(outcome.run_id) > 1:
            outcome.violations.append(f"its end was announced {times(outcome.run_id)} times")


def _line(outcome: Outcome) -> str:
    verdict = "BROKEN" if outcome.violations else "ok"
    return f"{outcome.row.number:4}  {verdict:6}  {outcome.seconds:5.0f} s  {_describe_row(outcome.row, RUN)}"


def _describe_row(row: Row, parameters: Iterable[str]) -> str:
    return ", ".join(f"{name}: {row[name]}" for name in parameters)


def _choose(options: argparse.Namespace, seed: int) -> list[Row]:
    rows = make_rows()
    if options.row:
        return [row for row in rows if row.number in options.row]
    if options.rows is None or options.rows >= len(rows):
        return rows
    return sorted(Random(seed).sample(rows, options.rows), key=lambda row: row.number)


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="python -m tests.crossing.pairs", description=__doc__)
    parser.add_argument("--rows", type=int, metavar="N", help="a sample of so many rows; all without it")
    parser.add_argument("--row", type=int, action="append", metavar="NUMBER", help="this row, as its line names it")
    parser.add_argument("--seed", type=int, help="of the sample and of the tools' pauses")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    began = time.monotonic()
    try:
        outcomes, totals = asyncio.run(play(_choose(options, seed), seed))
    except KeyboardInterrupt:
        exit_now(130)  # commands that still run are waited for otherwise
    broken = [outcome for outcome in outcomes if outcome.violations]
    for outcome in broken:
        for violation in outcome.violations[:5]:
            print(f"\nBROKEN row {outcome.row.number}, run {outcome.run_id}, seed {seed}: {violation}")
    counts = f"{totals['effects']} effects, {totals['kills']} kills, {totals['doubts']} calls in doubt"
    print(f"\n{counts}, {totals['rotations']} rotations")
    print(f"{len(outcomes)} rows, {len(broken)} broken, {time.monotonic() - began:.0f} s")
    exit_now(1 if broken else 0)


if __name__ == "__main__":
    main()
