"""The real Temporal server, one for the session, configured as the embedded one but for the size of queues."""

import gc
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from hypothesis import HealthCheck, settings
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure.client.connection import register_search_attributes
from perdure.converter import data_converter
from perdure.devserver import DYNAMIC_CONFIG
from tests.once import once_a_process

# A loaded machine is slow now and then, which is no fault of what is tried.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("patient")

TEMPORAL = str(Path(sys.executable).parent / "temporal")

# Tests that `make test` leaves out: whole processes, browsers, fuzzing, and what takes seconds by its nature.
# Each entry is the beginning of a path, or of a test's id.
SLOW = (
    "a2a/test_push.py",
    "a2a/test_tasks.py",
    "ag_ui/test_threads.py",
    "e2e/",
    "docs/",
    "gateway/test_changed_calls_doors.py",
    "crossing/",
    "gateway/test_openapi.py",
    "gateway/test_page.py",
    "gateway/test_page_inputs.py",
    "gateway/test_page_long.py",
    "gateway/test_page_runs.py",
    "gateway/test_page_screens.py",
    "gateway/test_process.py",
    "mcp/test_tasks.py",
    "release/",
    "replay/test_strict_sandbox.py",
    "test_fuzz_inputs.py",
    "test_fuzz_messages.py",
    "test_preloaded.py",
    "web_ui/test_chats.py",
    "workflows/test_build_moves.py",
    "workflows/test_fairness.py",
    "workflows/test_lane_faults.py",
    "workflows/test_long_run.py",
    "workflows/test_no_cache.py",
    "workflows/test_policy_conversations.py",
    "workflows/test_rotation.py",
    "workflows/test_versioning.py",
    "workflows/test_watch.py",
)
# Tests that `make test-all` leaves out, too: each group has a marker and a target of its name.
GROUPS = {
    # SIGKILL of workers, servers and clients
    "kills": (
        "chaos/test_chaos.py",
        "chaos/test_kill_between_events.py",
        "e2e/test_cli.py::test_a_run_killed_in_the_middle_goes_on_in_watch_to_one_completion_event",
        "e2e/test_crashtest.py",
        "e2e/test_deployment.py::test_three_workers_share_a_queue_and_a_store_and_one_may_die",
        "e2e/test_devserver.py",
        "e2e/test_mail.py::test_a_killed_bridge_loses_nothing_and_a_dormant_one_wakes",
        "e2e/test_mcp_server.py::test_a_run_goes_on_after_its_server_was_killed_and_the_next_one_sees_it",
        "e2e/test_mcp_server.py::test_a_task_outlives_its_server",
        "mcp/test_tasks.py::test_a_gateway_that_is_killed_between_polls_loses_no_task",
        "mcp/test_tasks.py::test_a_start_whose_reply_is_lost_is_found_by_its_key",
        "e2e/test_queue_example.py::test_a_read_whose_worker_is_killed_runs_again_on_the_next_one",
        "e2e/test_queue_example.py::test_an_effect_whose_worker_is_killed_is_asked_about_and_never_repeated",
        "e2e/test_two_projects.py",
        "workflows/test_agent_task_kills.py",
        "workflows/test_mcp_task_kills.py",
    ),
    # fresh clones, wheels, installations, containers
    "builds": (
        "e2e/test_demo.py",
        "e2e/test_deployment.py",
        "e2e/test_new.py",
        "e2e/test_odd_paths.py",
        "e2e/test_pause_example.py",
        "release/",
    ),
    # programs of others: MCP servers, the `temporal` command, Temporal's Web UI, node, tsc, the AI SDK
    "foreign": (
        "a2a/test_clients.py",
        "ag_ui/test_client.py",
        "activities/test_mcp_servers.py",
        "e2e/test_queue_example.py::test_a_worker_in_another_language_does_the_same_calls",
        "e2e/test_temporal_cli.py",
        "e2e/test_timestamps.py",
        "e2e/test_web_ui.py",
        "mcp/test_tasks_client.py",
        "page/test_sources.py::test_the_page_is_formatted",
        "page/test_sources.py::test_the_types_of_the_page_fit",
        "web_ui/test_client.py",
        "web_ui/test_page.py",
        "workflows/test_record.py::test_the_verifier_in_node_agrees_on_every_change",
    ),
}
# What the project is for: the one scenario of kills that `make test-all` has.
KEPT = "chaos/test_chaos.py::test_no_fault_repeats_or_loses_an_effect[R1]"
SLOW_TESTS = {
    "test_a_busy_pool_continues_as_new_and_follows_its_batches",
    "test_a_call_in_flight_in_the_origin_is_never_reported_as_not_made",
    "test_a_call_in_flight_when_its_run_timed_out_is_asked_about",
    "test_a_cancel_of_the_root_leaves_no_run_of_the_tree_and_no_effect_after_it",
    "test_a_conversation_that_became_a_summary_is_replayed_with_it",
    "test_a_conversation_that_is_too_long_is_summarized_as_live",
    "test_a_create_request_that_fails_is_sent_again",
    "test_a_denied_call_that_was_in_flight_in_the_origin_stays_in_doubt",
    "test_a_flood_of_calls_turn_after_turn_ends_with_the_steps",
    "test_a_flood_of_journal_calls_does_not_hold_up_the_worker",
    "test_a_journal_filled_for_ever_stays_small_enough_for_history",
    "test_a_lane_rotates_with_a_turn_open_and_loses_nothing",
    "test_a_scan_of_a_hundred_thousand_files_costs_as_much_as_one_of_a_few",
    "test_a_person_approves_the_tool_that_is_called_and_not_call_tool",
    "test_a_person_takes_a_turn_out_of_the_conversation",
    "test_a_read_that_never_succeeds_is_an_error_for_the_model",
    "test_a_record_goes_over_all_executions_and_numbers_the_questions_through",
    "test_a_result_that_the_ledger_got_after_the_end_is_used_by_the_resumed_run",
    "test_a_run_resumed_after_a_timeout_hears_that_its_delegation_was_cut_short",
    "test_a_run_that_rotated_is_resumed_with_all_of_its_conversation",
    "test_a_run_waits_for_a_store_that_is_away",
    "test_a_run_waits_for_its_key_and_goes_on_when_it_comes",
    "test_a_spawn_bomb_uses_no_more_than_the_budget_of_the_first_run",
    "test_a_storm_of_runs_keeps_to_the_providers_limit_and_all_end",
    "test_a_turn_costs_as_much_history_in_a_long_conversation_as_in_a_short_one",
    "test_a_turn_that_a_batch_did_not_answer_is_sent_again",
    "test_a_worker_that_stops_between_two_pieces_loses_none",
    "test_an_approved_call_in_flight_is_not_asked_about_again_in_a_resumed_run",
    "test_another_worker_goes_on_with_a_delegation_and_dispatches_nothing_twice",
    "test_arguments_that_do_not_fit_bring_the_schema_and_json_in_texts_is_read",
    "test_both_go_on_where_their_histories_grow_long",
    "test_check_measures_the_rules_that_depend_on_the_size_of_a_call",
    "test_clients_that_leave_leave_nothing_behind",
    "test_each_tick_of_a_cron_workflow_has_keys_of_its_own",
    "test_of_a_flood_in_one_reply_only_the_first_two_hundred_are_made",
    "test_of_several_bridges_each_message_has_one_run",
    "test_resume_uses_a_new_request_id_and_does_not_attempt_reply_threading",
    "test_submits_to_one_lane_are_sent_a_few_at_a_time",
    "test_the_last_turn_comes_also_after_a_rotation",
    "test_three_levels_with_a_failure_a_timeout_and_a_cancel_in_them",
    "test_twenty_images_of_a_megabyte_leave_history_as_small_as_without",
    "test_what_a_person_decided_and_answered_is_part_of_the_record",
    "test_what_is_looked_for_is_in_every_form",
    "test_what_takes_too_much_ends_while_the_event_loop_goes_on",
}

# Each test has a task queue of its own, which a server keeps until five minutes after its last worker.
SMALL_QUEUES = {"matching.maxTaskQueueIdleTime": "1m"}

# A history is "long" after this many events, so that a short run rotates several times where a test wants it.
SHORT_HISTORY = 120


def pytest_configure() -> None:
    """A background job of a shell ignores SIGINT, and so would every process that a test starts and interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def place_of(path: Path) -> str:
    return path.relative_to(Path(__file__).parent).as_posix()


def group_of(place: str) -> str | None:
    """Return the group of a file or a test, the first that has it. `place` is relative to this folder."""
    return None if place == KEPT else next((name for name, places in GROUPS.items() if place.startswith(places)), None)


def is_left_out(path: Path, tier: str) -> bool:
    """Return True if `make` runs nothing of the file in this tier, so that it need not be loaded."""
    place = place_of(path)
    if tier == "not slow":
        return place.startswith((*SLOW, *(file for places in GROUPS.values() for file in places)))
    return tier in GROUPS and place not in {each.partition("::")[0] for each in GROUPS[tier]}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    skips = collection_path.is_file() and is_left_out(collection_path, config.option.markexpr)
    return True if skips else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        place = place_of(item.path) + "".join(item.nodeid.partition("::")[1:])
        group = group_of(place)
        if group:
            item.add_marker(group)
        if group or place == KEPT or place.startswith(SLOW) or getattr(item, "originalname", item.name) in SLOW_TESTS:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """What is loaded by now stays: half a million objects that the garbage collector need not look at again.

    A workflow that it interrupts stands still, and after two seconds the SDK takes that for a deadlock.
    """
    gc.collect()
    gc.freeze()


def dynamic_config(**more: object) -> list[str]:
    values = {**DYNAMIC_CONFIG, **SMALL_QUEUES, **more}
    return [f"--dynamic-config-value={name}={json.dumps(value)}" for name, value in values.items()]


@pytest.fixture(scope="session", autouse=True)
def _once() -> Iterator[None]:
    with once_a_process():
        yield


async def server(**more: object) -> WorkflowEnvironment:
    environment = await WorkflowEnvironment.start_local(
        dev_server_existing_path=TEMPORAL,
        dev_server_extra_args=dynamic_config(**more),
        data_converter=data_converter,
    )
    await register_search_attributes(environment.client)
    return environment


@pytest.fixture(scope="session")
async def client() -> AsyncIterator[Client]:
    async with await server() as environment:
        yield environment.client


@pytest.fixture(scope="session")
async def skipping() -> AsyncIterator[WorkflowEnvironment]:
    """A server where time can be skipped: by itself for runs that `client` starts, unless a test switches that off."""
    config = dynamic_config(**{"frontend.WorkflowTimeSkippingEnabled": True})
    async with await WorkflowEnvironment.start_time_skipping_v2(
        dev_server_existing_path=TEMPORAL, dev_server_extra_args=config, data_converter=data_converter
    ) as environment:
        await register_search_attributes(environment.client)
        yield environment


@pytest.fixture(scope="session")
async def short_history_client() -> AsyncIterator[Client]:
    """A server that suggests continue-as-new after `SHORT_HISTORY` events."""
    async with await server(**{"limit.historyCount.suggestContinueAsNew": SHORT_HISTORY}) as environment:
        yield environment.client


@pytest.fixture(scope="session")
async def no_commands_client() -> AsyncIterator[Client]:
    """A server that sends workers no commands, as most do: a cancel reaches a call with its next heartbeat."""
    flags = {"frontend.WorkerCommandsEnabled": False, "system.enableCancelActivityWorkerCommand": False}
    async with await server(**flags) as environment:
        yield environment.client


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """A server that speaks S3, conditional puts too."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty bucket; this process and those that it starts may use it."""
    name = f"perdure-{uuid4().hex[:12]}"
    httpx.put(f"{s3}/{name}").raise_for_status()
    access = {"ACCESS_KEY_ID": "tests", "SECRET_ACCESS_KEY": "tests", "REGION": "us-east-1", "ENDPOINT_URL": s3}
    for variable, value in access.items():
        monkeypatch.setenv(f"AWS_{variable}", value)
    return f"s3://{name}/runs"
