"""`perdure doctor`: everything a run needs, looked at one by one."""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.metadata import packages_distributions, version
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from contracts.mcp import PinState
from contracts.reconcile import Finding, Problem, ReconcileReport
from decisions.model_names import DEFAULT, provider_of
from decisions.text.formatting import cut
from devserver import ServerDidNotStart
from perdure.answer_keys import VARIABLE as ANSWER_KEY
from perdure.client.connection import configured_address, register_search_attributes
from perdure.client.errors import NotReachable
from perdure.codec import VARIABLE
from perdure.process.mcp_tools import Standing, standings
from perdure.process.reconcile_schedule import latest_look
from perdure.session import Needs, open_session
from settings import Deployment, ProjectError, Settings, load

MOST_TOLD = 5  # findings in a line
HEADINGS = {
    Problem.wedged: "wedged runs",
    Problem.orphaned: "orphaned runs",
    Problem.unattended: "unattended runs",
    Problem.claim: "claims",
    Problem.overdue: "waits",
    Problem.left_store: "left stores",
}
OURS = ("contracts", "decisions", "workflows", "activities")


@dataclass(frozen=True)
class Check:
    """`found` says what is there, or what to do."""

    name: str
    ok: bool
    found: str


async def examine() -> AsyncIterator[Check]:
    """The checks, in the order in which a start would meet them."""
    python = ".".join(str(n) for n in sys.version_info[:3])
    yield Check("python", sys.version_info >= (3, 11), f"{python} (3.11 or later is needed)")
    yield Check("temporal SDK", ok=True, found=version("temporalio"))
    yield _names()
    try:
        settings = load()
    except ProjectError as error:
        yield Check("project", ok=False, found=str(error))
        return
    yield Check("project", ok=True, found=f"{settings.folder}, agents: {', '.join(settings.agents)}")
    yield _modules(settings.folder)
    yield _model(settings)
    yield _encryption(settings)
    yield _answers(settings)
    async for check in _tools(settings):
        yield check
    async for check in _object_stores(settings):
        yield check
    if settings.servers:
        yield await _mcp(settings)
    async for check in _server(settings):
        yield check


def _names() -> Check:
    """Another distribution that installs one of our top-level names would be imported in its place."""
    owners = packages_distributions()
    foreign = {name: owner for name in OURS for owner in owners.get(name, ()) if owner != "perdure"}
    if foreign:
        told = ", ".join(f"{owner} also installs `{name}`" for name, owner in foreign.items())
        return Check("import names", ok=False, found=f"{told}: use an environment without it")
    return Check("import names", ok=True, found="no other package owns ours")


def _modules(folder: Path) -> Check:
    """The project's folder comes last on the import path: a module there that has a name of ours is never found."""
    if folder == Path(__file__).parents[1]:
        return Check("module names", ok=True, found="the project is Perdure's own folder")
    ours = {name for name, owners in packages_distributions().items() if "perdure" in owners}
    theirs = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    if taken := sorted(ours & theirs):
        named = ", ".join(f"`{name}`" for name in taken)
        told = (
            f"{named} in {folder}: Perdure has {'modules' if taken[1:] else 'a module'} of that name, and finds its own"
        )
        return Check("module names", ok=False, found=f"{told}; rename yours")
    return Check("module names", ok=True, found="none of the project's is one of Perdure's")


def _model(settings: Settings) -> Check:
    from perdure.process.models import clients_of

    try:
        clients_of(settings)
    except ProjectError as error:
        return Check("model", ok=False, found=str(error))
    if settings.rehearses:
        found = "rehearsal, as no model is configured; ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL brings a real one"
        return Check("model", ok=True, found=found)
    names = (settings.model, *settings.fallbacks)
    return Check("model", ok=True, found=f"{', else '.join(_placed(settings, name) for name in names)} (not called)")


def _placed(settings: Settings, name: str) -> str:
    providers = settings.file.model.providers
    where, _ = provider_of(name, providers)
    if where == DEFAULT:
        key, place = settings.api_key, settings.base_url or "Anthropic"
    else:
        each = providers[where]
        key, place = settings.keys.get(where), each.base_url or f"{each.kind}, {each.region}"
        if each.kind != "messages" and not key:
            return f"{name} at {place}, with the cloud's own credentials"
    return f"{name} at {settings.secrets.redact(place)}, {'with' if key else 'without'} a key"


def _encryption(settings: Settings) -> Check:
    if settings.codec is None:
        return Check("encryption", ok=True, found=f"off: {VARIABLE} turns it on")
    reads = f"; {', '.join(settings.codec.key_ids[1:])} can be read too" if settings.codec.key_ids[1:] else ""
    return Check("encryption", ok=True, found=f"payloads are encrypted with key {settings.codec.key_id}{reads}")


def _answers(settings: Settings) -> Check:
    keys = settings.answer_keys
    if not keys.public:
        return Check(
            "answers", ok=True, found=f"whoever reaches Temporal may answer: {ANSWER_KEY} asks for signed ones"
        )
    signs = "" if keys.secret else "; this process only checks them"
    return Check("answers", ok=True, found=f"runs take those signed with key {' or '.join(keys.public)}{signs}")


async def _tools(settings: Settings) -> AsyncIterator[Check]:
    from perdure.process.project import looked_at, unpriced_budgets

    try:
        settings.check_headers()
        async with looked_at(settings) as project:
            tools, unpriced = project.tools, unpriced_budgets(project)
    except ProjectError as error:
        yield Check("tools", ok=False, found=str(error))
        return
    yield Check("tools", ok=True, found=", ".join(tools))
    for line in unpriced:
        yield Check("budget", ok=False, found=line)


async def _object_stores(settings: Settings) -> AsyncIterator[Check]:
    """Those that are set are asked, with the credentials of this environment."""
    if settings.store:
        from activities.storage.object_store import RemoteStores

        try:
            count = await asyncio.to_thread(lambda: sum(1 for _ in RemoteStores.at(settings.store or "").folders()))
            yield Check("object store", ok=True, found=f"{settings.store}: answers, {count} runs")
        except (OSError, ValueError) as error:
            yield Check("object store", ok=False, found=str(error))
    if settings.payloads:
        try:
            await settings.payloads.look()
            yield Check("large payloads", ok=True, found="PERDURE_PAYLOADS answers")
        except OSError as error:
            yield Check("large payloads", ok=False, found=str(error))


async def _mcp(settings: Settings) -> Check:
    try:
        found = await standings(settings)
    except ProjectError as error:
        return Check("MCP servers", ok=False, found=str(error))
    told = "; ".join(_standing(each) for each in found)
    return Check("MCP servers", ok=all(each.is_settled for each in found), found=told)


def _standing(standing: Standing) -> str:
    if standing.down:
        return standing.down
    if not standing.is_seen:
        return f"{standing.server}: not seen yet: perdure tools --accept {standing.server}"
    other = [f"{tool} {state}" for tool, state in standing.tools.items() if state is not PinState.pinned]
    refused = "".join(f"; {tool!a} is not offered: {why}" for tool, why in standing.refused.items())
    return f"{standing.server}: {', '.join(other) or f'{len(standing.tools)} tools as accepted'}{refused}"


async def _server(settings: Settings) -> AsyncIterator[Check]:
    try:
        where = configured_address() or "embedded"
        async with open_session(settings, Needs.answers) as here:
            address = here.client.service_client.config.target_host
            yield Check("Temporal", ok=True, found=f"{where}: answers at {address}, namespace {here.client.namespace}")
            await register_search_attributes(here.client)
            yield Check("search attributes", ok=True, found="registered")
            if where != "embedded":
                worked_on = await here.has_worker()
                found = "one is polling" if worked_on else "none is polling: start one with perdure worker"
                yield Check("worker", worked_on, f"task queue {settings.task_queue}: {found}")
                if settings.deployment:
                    yield await _deployment(here.client, settings.deployment)
            yield await _reconciler(here.client, settings.task_queue)
            for check in await _runs(here.client, settings):
                yield check
    except (NotReachable, ServerDidNotStart) as error:
        yield Check("Temporal", ok=False, found=str(error))


async def _deployment(client: Client, deployment: Deployment) -> Check:
    """Without a current build, new runs wait in vain for a versioned worker."""
    from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentRequest

    name, build_id = deployment.name, deployment.build_id
    command = f"temporal worker deployment set-current-version --deployment-name {name} --build-id {build_id}"
    asked = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=name)
    try:
        answer = await client.workflow_service.describe_worker_deployment(asked)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return Check("deployment", ok=False, found=f"{deployment}: no worker of it has been seen yet; start one")
    current = answer.worker_deployment_info.routing_config.current_deployment_version.build_id
    if current == build_id:
        return Check("deployment", ok=True, found=f"{deployment}: it is current, new runs go to it")
    if current:
        return Check("deployment", ok=True, found=f"{deployment}: new runs go to build {current}; to change: {command}")
    return Check("deployment", ok=False, found=f"{deployment}: no build is current, so no new run begins: {command}")


async def _reconciler(client: Client, task_queue: str) -> Check:
    try:
        at = await latest_look(client, task_queue)
    except RPCError as error:
        why = "" if error.status == RPCStatusCode.NOT_FOUND else f" ({cut(error.message, 100)})"
        return Check("reconciler", ok=True, found=f"not scheduled yet{why}; a worker's start does it")
    found = f"every five minutes, the last time at {at:%Y-%m-%d %H:%M} UTC" if at else "every five minutes, not yet"
    return Check("reconciler", ok=True, found=found)


async def _runs(client: Client, settings: Settings) -> list[Check]:
    """A look of our own, as the reconciler has it, that repairs nothing."""
    from activities.reconcile.reconcile import Reconciliations
    from perdure.process.project import looked_at

    try:
        async with looked_at(settings) as project:
            report = await Reconciliations(client, project.stores, settings.task_queue).look()
    except ProjectError as error:
        return [Check("runs", ok=False, found=f"not looked at: {error}")]
    except RPCError as error:
        return [Check("runs", ok=False, found=f"cannot be looked at: {cut(error.message, 200)}")]
    return [_told(problem, report) for problem in Problem]


def _told(problem: Problem, report: ReconcileReport) -> Check:
    findings = [finding for finding in report.findings if finding.problem is problem]
    count = report.found.get(problem, 0)
    lines = "; ".join(f"{each.run_id}: {each.found} → {each.advice}" for each in findings[:MOST_TOLD])
    found = f"{count}: {lines}{' …' if count > MOST_TOLD else ''}" if count else "none"
    if problem in (Problem.claim, Problem.overdue) and report.unasked:
        found += f" ({report.unasked} runs did not answer, or were too many to ask)"
    if problem in (Problem.claim, Problem.left_store) and report.after:
        found += f" (in the first {report.stores} stores; the reconciler looks into the others)"
    return Check(HEADINGS[problem], ok=all(_is_seen_to(each) for each in findings), found=found)


def _is_seen_to(finding: Finding) -> bool:
    """The reconciler repairs it."""
    return finding.repair is not None
