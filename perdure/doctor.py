"""The checks of `perdure doctor`: everything that a run needs."""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.metadata import packages_distributions, version
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from contracts.reconcile import FindingKind, ReconcileReport
from contracts.tool import PinState
from decisions.errors import ReportedError
from decisions.ids import query_differs, query_equals
from decisions.model_names import DEFAULT, provider_of
from decisions.text.formatting import truncate
from perdure.answer_keys import ANSWER_KEY_VARIABLE
from perdure.client.batches import format_pool, query_pool
from perdure.client.connection import configured_address, register_search_attributes
from perdure.codec import CODEC_KEYS_VARIABLE
from perdure.process.mcp_tools import ServerStatus, server_statuses
from perdure.process.reconcile_schedule import last_check_time
from perdure.session import Needs, open_session
from settings import Deployment, Settings, load_settings

MAX_FINDINGS_SHOWN = 5  # findings in a line
HEADINGS = {
    FindingKind.wedged: "wedged runs",
    FindingKind.orphaned: "orphaned runs",
    FindingKind.unattended: "unattended runs",
    FindingKind.claim: "claims",
    FindingKind.overdue: "waits",
    FindingKind.left_store: "left stores",
}
PACKAGES = ("contracts", "decisions", "workflows", "activities")


@dataclass(frozen=True)
class Check:
    """The result of a check; `found` is what was found, or what to do."""

    name: str
    ok: bool
    found: str


async def run_checks() -> AsyncIterator[Check]:
    """Run the checks in the order of a start."""
    python = ".".join(str(n) for n in sys.version_info[:3])
    yield Check("python", sys.version_info >= (3, 11), f"{python} (3.11 or later is needed)")
    yield Check("temporal SDK", ok=True, found=version("temporalio"))
    yield _check_import_names()
    try:
        settings = load_settings()
    except ReportedError as error:
        yield Check("project", ok=False, found=str(error))
        return
    yield Check("project", ok=True, found=f"{settings.folder}, agents: {', '.join(settings.agents)}")
    yield _check_module_names(settings.folder)
    yield _check_model(settings)
    yield _check_encryption(settings)
    yield _check_answer_keys(settings)
    async for check in _check_tools(settings):
        yield check
    async for check in _check_object_stores(settings):
        yield check
    if settings.servers:
        yield await _check_mcp(settings)
    async for check in _check_server(settings):
        yield check


def _check_import_names() -> Check:
    """Check that no other distribution installs one of Perdure's top-level names: it could be imported instead."""
    owners = packages_distributions()
    foreign = {name: owner for name in PACKAGES for owner in owners.get(name, ()) if owner != "perdure"}
    if foreign:
        conflicts = ", ".join(f"{owner} also installs `{name}`" for name, owner in foreign.items())
        return Check("import names", ok=False, found=f"{conflicts}: use an environment without it")
    return Check("import names", ok=True, found="no other package installs Perdure's modules")


def _check_module_names(folder: Path) -> Check:
    """Check the project's module names: its folder is last on the import path, so Perdure's modules win."""
    if folder == Path(__file__).parents[1]:
        return Check("module names", ok=True, found="the project is Perdure's own folder")
    perdures = {name for name, owners in packages_distributions().items() if "perdure" in owners}
    projects = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    if taken := sorted(perdures & projects):
        names = ", ".join(f"`{name}`" for name in taken)
        found = f"Perdure's own {'modules shadow' if taken[1:] else 'module shadows'} {names} in {folder}; rename yours"
        return Check("module names", ok=False, found=found)
    return Check("module names", ok=True, found="no project module shadows a Perdure module")


def _check_model(settings: Settings) -> Check:
    from perdure.process.models import create_clients

    try:
        create_clients(settings)
    except ReportedError as error:
        return Check("model", ok=False, found=str(error))
    if settings.is_rehearsal:
        found = "rehearsal, as no model is configured; for a real one set ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL"
        return Check("model", ok=True, found=found)
    names = (settings.model, *settings.fallbacks)
    return Check(
        "model", ok=True, found=f"{', else '.join(_format_provider(settings, name) for name in names)} (not called)"
    )


def _format_provider(settings: Settings, name: str) -> str:
    providers = settings.file.model.providers
    where, _ = provider_of(name, providers)
    if where == DEFAULT:
        key, place = settings.api_key, settings.base_url or "Anthropic"
    else:
        provider = providers[where]
        key, place = settings.keys.get(where), provider.base_url or f"{provider.kind}, {provider.region}"
        if provider.is_cloud and not key:
            return f"{name} at {place}, with the cloud's own credentials"
    return f"{name} at {settings.secrets.redact(place)}, {'with' if key else 'without'} a key"


def _check_encryption(settings: Settings) -> Check:
    if settings.codec is None:
        return Check("encryption", ok=True, found=f"off: to encrypt payloads set {CODEC_KEYS_VARIABLE}")
    reads = f"; {', '.join(settings.codec.key_ids[1:])} can be read too" if settings.codec.key_ids[1:] else ""
    return Check("encryption", ok=True, found=f"payloads are encrypted with key {settings.codec.key_id}{reads}")


def _check_answer_keys(settings: Settings) -> Check:
    keys = settings.answer_keys
    if not keys.public:
        found = f"any client of Temporal may answer: to require signatures set {ANSWER_KEY_VARIABLE}"
        return Check("answers", ok=True, found=found)
    signs = "" if keys.secret else "; this process only verifies them"
    return Check("answers", ok=True, found=f"runs accept those signed with key {' or '.join(keys.public)}{signs}")


async def _check_tools(settings: Settings) -> AsyncIterator[Check]:
    from perdure.process.project import display_project, ignored_options, unpriced_budgets

    try:
        settings.check_headers()
        settings.check_notify()
        async with display_project(settings) as project:
            tools, unpriced, ignored = project.tools, unpriced_budgets(project), ignored_options(project)
    except ReportedError as error:
        yield Check("tools", ok=False, found=str(error))
        return
    yield Check("tools", ok=True, found=", ".join(tools))
    for line in unpriced:
        yield Check("budget", ok=False, found=line)
    for line in ignored:
        yield Check("model", ok=True, found=line)


async def _check_object_stores(settings: Settings) -> AsyncIterator[Check]:
    """Check the configured object stores, with the credentials of this environment."""
    if settings.store:
        from activities.storage.object_store import RemoteStores

        try:
            count = await asyncio.to_thread(
                lambda: sum(1 for _ in RemoteStores.at(settings.store or "").list_folders())
            )
            yield Check("object store", ok=True, found=f"{settings.store}: answers, {count} runs")
        except (OSError, ValueError) as error:
            yield Check("object store", ok=False, found=str(error))
    if settings.payloads:
        try:
            await settings.payloads.check_access()
            yield Check("large payloads", ok=True, found="PERDURE_PAYLOADS answers")
        except OSError as error:
            yield Check("large payloads", ok=False, found=str(error))


async def _check_mcp(settings: Settings) -> Check:
    try:
        servers = await server_statuses(settings)
    except ReportedError as error:
        return Check("MCP servers", ok=False, found=str(error))
    found = "; ".join(map(_format_server_status, servers))
    return Check("MCP servers", ok=all(server.is_settled for server in servers), found=found)


def _format_server_status(standing: ServerStatus) -> str:
    if standing.down:
        return standing.down
    if not standing.is_seen:
        return f"{standing.server}: not seen yet: perdure tools --accept {standing.server}"
    other = [f"{tool} {state}" for tool, state in standing.tools.items() if state is not PinState.pinned]
    refused = "".join(f"; {tool!a} is not offered: {reason}" for tool, reason in standing.refused.items())
    return f"{standing.server}: {', '.join(other) or f'{len(standing.tools)} tools as accepted'}{refused}"


async def _check_server(settings: Settings) -> AsyncIterator[Check]:
    try:
        where = configured_address() or "embedded"
        async with open_session(settings, Needs.answers) as here:
            address = here.client.service_client.config.target_host
            yield Check("Temporal", ok=True, found=f"{where}: answers at {address}, namespace {here.client.namespace}")
            yield await _check_search_attributes(here.client, settings)
            if where != "embedded":
                has_worker = await here.has_worker()
                found = "polled" if has_worker else "not polled: start a worker with perdure worker"
                yield Check("worker", has_worker, f"task queue {settings.task_queue}: {found}")
                if settings.deployment:
                    yield await _check_deployment(here.client, settings.deployment)
            yield await _check_reconciler(here.client, settings.task_queue)
            if pool := await query_pool(here.client, settings.task_queue):
                yield Check("batches", ok=True, found=format_pool(pool))
            for check in await _check_runs(here.client, settings):
                yield check
    except ReportedError as error:
        yield Check("Temporal", ok=False, found=str(error))


async def _check_search_attributes(client: Client, settings: Settings) -> Check:
    if not settings.file.worker.search_attributes:
        found = "none are set: runs cannot be listed by status or question ([worker] search_attributes = false)"
    else:
        found = await register_search_attributes(client) or "registered"
    return Check("search attributes", ok=True, found=found)


async def _check_deployment(client: Client, deployment: Deployment) -> Check:
    """Check the worker deployment: without a current build, new runs do not start."""
    from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentRequest

    name, build_id = deployment.name, deployment.build_id
    command = f"temporal worker deployment set-current-version --deployment-name {name} --build-id {build_id}"
    request = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=name)
    try:
        answer = await client.workflow_service.describe_worker_deployment(request, retry=True)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return Check("deployment", ok=False, found=f"{deployment}: it has no worker yet; start one")
    current = answer.worker_deployment_info.routing_config.current_deployment_version.build_id
    if current == build_id:
        other = f"{query_equals('TemporalWorkerDeployment', name)} AND ExecutionStatus = 'Running'"
        other += f" AND {query_differs('TemporalWorkerDeploymentVersion', f'{name}:{build_id}')}"
        held = (await client.count_workflows(other)).count
        rest = f'; other builds hold {held}: temporal workflow list --query "{other}"' if held else ""
        return Check("deployment", ok=True, found=f"{deployment}: it is current, new runs use it{rest}")
    if current:
        return Check("deployment", ok=True, found=f"{deployment}: new runs use build {current}; to change: {command}")
    return Check("deployment", ok=False, found=f"{deployment}: no build is current, so no new run starts: {command}")


async def _check_reconciler(client: Client, task_queue: str) -> Check:
    try:
        at = await last_check_time(client, task_queue)
    except RPCError as error:
        reason = "" if error.status == RPCStatusCode.NOT_FOUND else f" ({truncate(error.message, 100)})"
        return Check("reconciler", ok=True, found=f"not scheduled yet{reason}; a worker schedules it when it starts")
    found = f"every five minutes, {f'last at {at:%Y-%m-%d %H:%M} UTC' if at else 'not run yet'}"
    return Check("reconciler", ok=True, found=found)


async def _check_runs(client: Client, settings: Settings) -> list[Check]:
    """Run the reconciler's checks, without repairs."""
    from activities.reconcile.reconcile import Reconciler
    from perdure.process.project import display_project

    try:
        async with display_project(settings) as project:
            report = await Reconciler(client, project.stores, settings.task_queue).run_pass()
    except ReportedError as error:
        return [Check("runs", ok=False, found=f"not checked: {error}")]
    except RPCError as error:
        return [Check("runs", ok=False, found=f"cannot be checked: {truncate(error.message, 200)}")]
    return [_problem_check(problem, report) for problem in FindingKind]


def _problem_check(problem: FindingKind, report: ReconcileReport) -> Check:
    findings = [finding for finding in report.findings if finding.problem is problem]
    count = report.found.get(problem, 0)
    lines = "; ".join(
        f"{finding.run_id}: {finding.found} → {finding.advice}" for finding in findings[:MAX_FINDINGS_SHOWN]
    )
    found = f"{count}: {lines}{' …' if count > MAX_FINDINGS_SHOWN else ''}" if count else "none"
    if problem in (FindingKind.claim, FindingKind.overdue) and report.unasked:
        found += f" ({report.unasked} runs did not answer or were not queried)"
    if problem in (FindingKind.claim, FindingKind.left_store) and report.after:
        found += f" (in the first {report.stores} stores; the reconciler checks the others)"
    return Check(HEADINGS[problem], ok=all(finding.repair is not None for finding in findings), found=found)
