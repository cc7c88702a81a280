"""Messages as files under fault: bridges die, files are of every bad kind, and each message is handled once (R18)."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random

from perdure.features.mailbox.activities.folder import MailFolder
from perdure.features.mailbox.activities.records import TaskRecords
from perdure.features.mailbox.contract import MAX_MESSAGE_BYTES
from perdure.testkit.model_server import Reply, says, slow
from perdure.testkit.rehearsal.sse import Json
from tests.chaos.auditor import Audit, judge_logs
from tests.chaos.context import Row, ScenarioContext, row
from tests.chaos.crash_points import MAIL_POINTS, Trap
from tests.chaos.environment import PATIENCE, Environment, Workers, until

PLANS = ("spring", "summer", "autumn")
GIGABYTES = 2 * 1024**3
# What is written, and how often, beside good tasks.
KINDS = {
    "good": 60,
    "moved": 8,  # renamed while it may be claimed
    "duplicate": 8,
    "reused": 4,  # the id of another message
    "malformed": 4,
    "empty": 3,
    "latin": 3,
    "huge": 2,
    "link": 2,
    "pipe": 2,
    "folder": 2,
    "half": 2,  # never renamed: it is not ready
}


@dataclass
class Written:
    """What was put into the inbox. `tasks` are the messages by id and hash, and the copies of each."""

    tasks: Counter[tuple[str, str]] = field(default_factory=Counter)
    plans: dict[tuple[str, str], str] = field(default_factory=dict)
    bad: Counter[str] = field(default_factory=Counter)  # hashes
    strange: list[str] = field(default_factory=list)  # marks in names of what is no regular file, or too large
    half: list[Path] = field(default_factory=list)

    @property
    def files(self) -> int:
        return sum(self.tasks.values()) + sum(self.bad.values()) + len(self.strange)


def reply(body: Json) -> Reply:
    """To the task it is given."""
    return says(f"done {body['messages'][-1]['content'][-1]['text'][:40]}")


async def exchanged(context: ScenarioContext, *, files: int, size: int, kills: int) -> Row:
    """R18: files of every kind come while bridges are killed."""
    async with context.environment(says=reply) as it:
        agent, folder = _agent(it, "r18"), it.project.folder / "mail"
        it.start_workers("r18", 2)
        bridges = bridges_of(it, "r18", folder, agent)
        bridges.add(size)
        wrote = Written()
        writing = asyncio.create_task(_write(it, folder, files, wrote))
        for _ in range(kills):
            await asyncio.sleep(it.random.uniform(0.2, 1.0))
            bridges.kill()
        await writing
        found = Audit()
        await _settled(it, bridges, found, PATIENCE + files)
        await _judge(it, folder, wrote, found)
        judge_logs(found, it, quiet=True)
        return row(it, found, f"{wrote.files} files, {len(wrote.tasks)} messages, {size} bridges")


async def killed_at(context: ScenarioContext, *, messages: int) -> Row:
    """R18: a bridge dies at each named point; the next one goes on."""
    async with context.environment(says=reply) as it:
        found = Audit()

        async def at(number: int) -> None:
            point = MAIL_POINTS[number]
            queue, folder = f"r18-{number}", it.project.folder / f"mail-{number}"
            bridges = bridges_of(it, queue, folder, _agent(it, queue))
            it.start_workers(queue, 1)
            wrote = Written()
            for each in range(messages):
                _put(folder / "inbox" / "plan", f"{each}.md", _task("plan", f"{number}-{each}"), wrote)
            bridges.add(1, Trap(point))
            fallen = bridges.processes[0]
            await until(lambda: not fallen.is_alive())
            if fallen.exitcode != -signal.SIGKILL:
                found.wrong(f"{point}: the bridge did not come by there, and left with {fallen.exitcode}")
            it.fault()
            bridges.add(1)
            await _settled(it, bridges, found, PATIENCE)
            await _judge(it, folder, wrote, found, queue)

        await asyncio.gather(*(at(number) for number in range(len(MAIL_POINTS))))
        judge_logs(found, it, quiet=True)
        return row(it, found, f"{len(MAIL_POINTS)} points")


async def shared(context: ScenarioContext, *, many: int, few: int, ratio: float) -> Row:
    """C3: a few messages of one plan come after many of another, and the model takes its time."""
    async with context.environment(says=lambda body: slow(reply(body), 0.3)) as it:
        agent, folder, wrote, found = _agent(it, "fair"), it.project.folder / "mail", Written(), Audit()
        for plan, count in (("many", many), ("few", few)):
            for number in range(count):
                _put(folder / "inbox" / plan, f"{number}.md", _task(plan, f"{plan}{number}"), wrote)
        it.start_workers("fair", 1)
        bridges = bridges_of(it, "fair", folder, agent)
        bridges.add()
        await _settled(it, bridges, found, PATIENCE + many)
        await _judge(it, folder, wrote, found, "fair")
        began = min(_times(folder, "archive/*/*"))
        took = {plan: max(_times(folder, f"outbox/{plan}/ack_*")) - began for plan in ("many", "few")}
        if took["few"] > ratio * took["many"]:
            found.wrong(f"the few took {took['few']:.1f} s, the many {took['many']:.1f} s")
        return row(
            it, found, f"{few} of one plan took {took['few']:.1f} s beside {many} that took {took['many']:.1f} s"
        )


def _times(folder: Path, pattern: str) -> list[float]:
    return [each.stat().st_mtime for each in folder.glob(pattern)]


@dataclass
class Bridges(Workers):
    """The bridges of one folder."""

    folder: Path = Path()
    agent: str = ""

    def kill(self) -> None:
        bridge = self.processes.pop(self.environment.random.randrange(len(self.processes)))
        bridge.kill()
        bridge.join()
        self.environment.fault()
        self.add()


def bridges_of(it: Environment, queue: str, folder: Path, agent: str) -> Bridges:
    return Bridges(it, lambda trap: it.project.bridge(queue, folder, agent, trap), folder=folder, agent=agent)


async def _write(it: Environment, folder: Path, files: int, wrote: Written) -> None:
    """In bursts, as senders do."""
    random = Random(it.seed)
    kinds = random.choices(list(KINDS), list(KINDS.values()), k=files)
    for number, kind in enumerate(kinds):
        _write_one(random, folder / "inbox" / random.choice(PLANS), kind, number, wrote)
        if random.random() < 0.1:
            await asyncio.sleep(random.uniform(0, 0.3))


def _write_one(random: Random, plan: Path, kind: str, number: int, wrote: Written) -> None:
    plan.mkdir(parents=True, exist_ok=True)
    name, data = f"{number}.md", _task(plan.name, str(number))
    known = sorted(wrote.plans)
    match kind:
        case "duplicate" | "reused" if not known:
            _write_one(random, plan, "good", number, wrote)
        case "good":
            _put(plan, name, data, wrote)
        case "moved":
            _put(plan, name, data, wrote)
            with suppress(FileNotFoundError):  # it was claimed before
                (plan / name).rename(plan / f"moved-{name}")
        case "duplicate":
            message = random.choice(known)
            plan = plan.parent / wrote.plans[message]
            _put(plan, name, _task(plan.name, message[0].removeprefix("m")), wrote)
        case "reused":
            message = random.choice(known)
            _put(plan, name, _task(plan.name, str(number), message[0]), wrote)
        case "malformed" | "empty" | "latin":
            bad = {"malformed": data.replace(b"task_id", f"tusk_{number}".encode()), "empty": b""}
            data = bad.get(kind, data + b"\xff\xfe")
            _place(plan, name, data)
            wrote.bad[_hash(data)] += 1
        case "half":
            (plan / f"{number}.tmp").write_bytes(data[:20])
            wrote.half.append(plan / f"{number}.tmp")
        case _:
            _place_strange(plan, kind, number)
            wrote.strange.append(f"strange-{number}")


def _place_strange(plan: Path, kind: str, number: int) -> None:
    match kind:
        case "huge":
            with (plan / f"strange-{number}.tmp").open("wb") as file:
                file.truncate(GIGABYTES if number % 2 else MAX_MESSAGE_BYTES + 1)
            (plan / f"strange-{number}.tmp").rename(plan / f"strange-{number}.md")
        case "link":
            (plan / f"strange-{number}.md").symlink_to("/etc/hostname")
        case "pipe":
            os.mkfifo(plan / f"strange-{number}.md")
        case "folder":
            (plan / f"strange-{number}").mkdir()
        case _:
            raise ValueError(kind)


def _task(plan: str, name: str, message_id: str | None = None) -> bytes:
    head = {"type": "task", "message_id": message_id or f"m{name}", "plan_id": plan, "task_id": f"t{name}", "from": "x"}
    front = "\n".join(f"{key}: {json.dumps(value)}" for key, value in head.items())
    return f"---\n{front}\n---\ntask {name}\n".encode()


def _put(plan: Path, name: str, data: bytes, wrote: Written) -> None:
    plan.mkdir(parents=True, exist_ok=True)
    _place(plan, name, data)
    message = data.partition(b'message_id: "')[2].partition(b'"')[0].decode()
    wrote.tasks[message, _hash(data)] += 1
    wrote.plans[message, _hash(data)] = plan.name


def _place(plan: Path, name: str, data: bytes) -> None:
    (plan / f"{name}.tmp").write_bytes(data)
    (plan / f"{name}.tmp").rename(plan / name)


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()


def _agent(it: Environment, name: str) -> str:
    """One whose mailbox no other scenario has."""
    agent = f"{name}-{it.seed}"
    (it.project.folder / "agents").mkdir(parents=True, exist_ok=True)
    (it.project.folder / "agents" / f"{agent}.md").write_text("---\ntools: []\n---\nDo what the goal says.\n")
    return agent


async def _settled(it: Environment, bridges: Bridges, found: Audit, patience: float) -> None:
    """Until nothing is left to come, and nothing in hand."""
    folder = bridges.folder
    records = TaskRecords(MailFolder(folder, bridges.agent).below)
    try:
        async with asyncio.timeout(patience):
            while True:
                await asyncio.sleep(0.2)
                if not any(_left(folder)) and not list(records.open_messages()):
                    return
    except TimeoutError:
        found.wrong(f"not settled: {sorted(map(str, _left(folder)))[:5]} left")


def _left(folder: Path) -> Iterator[Path]:
    for plan in (folder / "inbox").iterdir():
        yield from (each for each in plan.iterdir() if not each.name.startswith(".") and each.suffix != ".tmp")
        if (plan / ".pending").is_dir():
            yield from (plan / ".pending").iterdir()


async def _judge(it: Environment, folder: Path, wrote: Written, found: Audit, queue: str = "r18") -> None:
    """Every file has one end; every message one run, one ack, one reply, and a state that agrees."""
    _judge_files(folder, wrote, found)
    for (message, digest), plan in wrote.plans.items():
        _judge_message(folder / "outbox" / plan, message, digest, wrote.tasks[message, digest], found)
    runs = [each.id async for each in it.client.list_workflows(f"WorkflowType = 'AgentRun' AND TaskQueue = '{queue}'")]
    found.runs += len(runs)
    found.lost += max(len(wrote.tasks) - len(runs), 0)
    found.duplicates += max(len(runs) - len(wrote.tasks), 0)
    if len(runs) != len(wrote.tasks):
        found.wrong(f"{len(wrote.tasks)} messages had {len(runs)} runs")


def _judge_files(folder: Path, wrote: Written, found: Audit) -> None:
    done, dead = _regular(folder, ".processed"), _regular(folder, ".deadletter")
    if done != Counter({digest: count for (_, digest), count in wrote.tasks.items()}):
        found.wrong(f"in .processed/: {_difference(done, wrote)}")
    bad = Counter({digest: count for digest, count in dead.items() if digest in wrote.bad})
    if bad != wrote.bad:
        found.wrong(f"in .deadletter/: {sum(bad.values())} of {sum(wrote.bad.values())} bad files")
    names = [each.name for each in folder.glob("inbox/*/.deadletter/*")]
    for strange in wrote.strange:
        if sum(f"~{strange}." in f"{name}." and not name.endswith(".json") for name in names) != 1:
            found.wrong(f"{strange} is not in .deadletter/ once")
    unexplained = [n for n in names if not n.endswith(".reason.json") and f"{n}.reason.json" not in names]
    if unexplained:
        found.wrong(f"no reason beside {unexplained[:3]}")
    if gone := [each for each in wrote.half if not each.is_file()]:
        found.wrong(f"half-written files were taken: {gone[:3]}")


def _judge_message(outbox: Path, message: str, digest: str, copies: int, found: Audit) -> None:
    acks = [json.loads(each.read_text()) for each in outbox.glob(f"ack_{message}.*json")]
    own = [each for each in acks if each["sha256"] == digest]
    if [each["status"] for each in own] != ["SUCCEEDED"]:
        found.wrong(f"{message} {digest[:8]}: acks {[each['status'] for each in own]}")
        return
    statuses = [each["status"] for each in own[0]["history"]]
    if statuses != ["CONSUMED", "SUCCEEDED"] or len(own[0]["duplicates"]) != copies - 1:
        found.wrong(f"{message}: ack history {statuses}, {len(own[0]['duplicates'])} of {copies - 1} duplicates")
    task = own[0]["task_id"]
    state = json.loads((outbox / f"task_state_{task}.json").read_text())
    if [each["state"] for each in state["history"]] != ["CONSUMED", "RUNNING", "SUCCEEDED"]:
        found.wrong(f"{task}: states {[each['state'] for each in state['history']]}")
    answer = (outbox / f"{task}-reply.md").read_text()
    if f"done task {task.removeprefix('t')}\n" not in answer:
        found.wrong(f"{task}: its reply is {answer[-80:]!r}")


def _regular(folder: Path, where: str) -> Counter[str]:
    """The hashes of the messages there. Reasons are none."""
    files = (each for each in folder.glob(f"inbox/*/{where}/*") if each.is_file() and not each.is_symlink())
    small = (
        each for each in files if each.stat().st_size <= MAX_MESSAGE_BYTES and not each.name.endswith(".reason.json")
    )
    return Counter(_hash(each.read_bytes()) for each in small)


def _difference(done: Counter[str], wrote: Written) -> str:
    wanted = Counter({digest: count for (_, digest), count in wrote.tasks.items()})
    return f"{sum((wanted - done).values())} missing, {sum((done - wanted).values())} too many"
