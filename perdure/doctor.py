"""The checks of `perdure doctor`: everything that a run needs."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from importlib.metadata import version
from importlib.util import find_spec
from urllib.error import URLError
from urllib.request import urlopen

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.answer_keys import ANSWER_KEY_VARIABLE
from perdure.client.connection import configured_address, connect, register_search_attributes
from perdure.codec import CODEC_KEYS_VARIABLE
from perdure.decisions.errors import ReportedError
from perdure.decisions.ids import query_differs, query_equals
from perdure.decisions.model_names import DEFAULT, provider_of
from perdure.extras import install_command
from perdure.registry import Check, load_each, used
from perdure.session import Needs, open_session
from perdure.settings import Deployment, Settings, read_settings

QUICK_TIMEOUT = 3.0  # seconds for each answer
POLLERS = b"temporal_num_pollers"  # a metric of the SDK, which a worker has once it polls


async def run_checks() -> AsyncIterator[Check]:
    """Run the checks in the order of a start."""
    python = ".".join(str(n) for n in sys.version_info[:3])
    yield Check("python", sys.version_info >= (3, 11), f"{python} (3.11 or later is needed)")
    yield Check("temporal SDK", ok=True, found=version("temporalio"))
    try:
        settings, _ = read_settings(os.environ)
    except ReportedError as error:
        yield Check("project", ok=False, found=str(error))
        return
    faults = [*settings.faults, *settings.roster.faults.values()]
    for check in _each_line("project", *faults):
        yield check
    yield Check("project", ok=True, found=f"{settings.folder}, agents: {', '.join(settings.agents)}")
    if used():
        yield Check("features", ok=True, found=", ".join(f"{name} ({package})" for name, package in used().items()))
    async for check in _check_parts(settings):
        yield check
    async for check in _check_server(settings):
        yield check


async def _check_parts(settings: Settings) -> AsyncIterator[Check]:
    """Check what this process would run with: models, keys, tools, stores."""
    has_worker = find_spec("anthropic") is not None
    if has_worker:
        yield _check_model(settings)
    yield _check_encryption(settings)
    yield _check_answer_keys(settings)
    if not has_worker:
        yield Check("worker", ok=True, found=f"a client alone; for models and tools: {install_command('worker')}")
        return
    async for check in _check_tools(settings):
        yield check
    async for check in _check_object_stores(settings):
        yield check
    for check_feature in load_each("project_checks"):
        for check in await check_feature(settings):
            yield check


async def run_quick_checks(gateway: str | None = None) -> AsyncIterator[Check]:
    """Run the checks of a container's health: the server answers, and so does what this container runs.

    That is the worker that serves its metrics at PERDURE_METRICS, or the gateway at the address `gateway`. Nothing is
    started, and no model is called.
    """
    try:
        settings, _ = read_settings(os.environ)
        if configured_address() is None:
            yield Check("Temporal", ok=False, found="none is configured: set TEMPORAL_ADDRESS")
            return
        async with asyncio.timeout(QUICK_TIMEOUT):
            client = await connect(codec=settings.codec, payloads=settings.payloads)
        yield Check("Temporal", ok=True, found=f"answers, namespace {client.namespace}")
    except (ReportedError, TimeoutError) as error:
        yield Check("Temporal", ok=False, found=str(error) or "no answer in time")
        return
    if settings.metrics:
        page = await asyncio.to_thread(_read_page, f"http://{settings.metrics}/metrics")
        polls = page is not None and POLLERS in page
        yield Check("worker", polls, "polls" if polls else f"no poller is on the page at {settings.metrics}")
    if gateway:
        page = await asyncio.to_thread(_read_page, f"{gateway.rstrip('/')}/readyz")
        yield Check("gateway", page is not None, "ready" if page is not None else f"not ready at {gateway}")


def _read_page(url: str) -> bytes | None:
    """Return the page at an address of this machine; None if there is none."""
    try:
        with urlopen(url, timeout=QUICK_TIMEOUT) as answer:  # noqa: S310 - the operator's own address
            page: bytes = answer.read()
    except (URLError, OSError, ValueError):
        return None
    return page


def _each_line(name: str, *errors: ReportedError) -> list[Check]:
    """Return a failed check for each line of the errors."""
    return [Check(name, ok=False, found=line) for error in errors for line in str(error).splitlines()]


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
        if provider.is_relay:
            return f"{name}, which is a tool"
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
    from perdure.process.project import display_project, ignored_options, oversized_replies, unpriced_budgets
    from perdure.settings.flaws import find_project_flaws

    try:
        async with display_project(settings, is_worker=True) as project:
            tools, unpriced, ignored = project.tools, unpriced_budgets(project), ignored_options(project)
            oversized, flaws = oversized_replies(project), find_project_flaws(project, settings)
    except ReportedError as error:
        known_lines = {line for fault in settings.faults for line in str(fault).splitlines()}
        for check in _each_line("tools", error):
            if check.found not in known_lines:
                yield check
        return
    yield Check("tools", ok=True, found=", ".join(tools))
    for line in unpriced:
        yield Check("budget", ok=False, found=line)
    for line in ignored:
        yield Check("model", ok=True, found=line)
    for line in oversized:
        yield Check("model", ok=False, found=line)
    for line in flaws:
        yield Check("names", ok=False, found=line)


async def _check_object_stores(settings: Settings) -> AsyncIterator[Check]:
    """Check the configured object stores, with the credentials of this environment."""
    if settings.store:
        from perdure.activities.storage.object_store import RemoteStores

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
                if differ := await here.worker_differences():
                    yield Check("workers", ok=False, found=differ)
                if settings.deployment:
                    yield await _check_deployment(here.client, settings.deployment)
            for check_feature in load_each("server_checks"):
                for check in await check_feature(here.client, settings):
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
