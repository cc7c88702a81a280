"""The faults of the scorecard, each as a scenario with its short and its full size. The auditor judges every one."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.chaos import (
    answers,
    approvals,
    batches,
    budgets,
    followups,
    full_disk,
    inbox,
    lanes,
    limits,
    mailboxes,
    media,
    messages,
    pauses,
    places,
    server_faults,
    soak,
    trees,
    worker_faults,
)
from tests.chaos.context import Row, ScenarioContext

Play = Callable[..., Awaitable[Row]]


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    play: Play
    short: Mapping[str, Any] | None  # None: it says something at full size only
    full: Mapping[str, Any]

    async def run(self, context: ScenarioContext, sizes: Mapping[str, Any]) -> Row:
        began = time.monotonic()
        row = await self.play(context, **sizes)
        row.scenario, row.seconds = f"{self.name} {self.title}", time.monotonic() - began
        return row


SCENARIOS = (
    Scenario(
        "R1",
        "kills at random moments",
        worker_faults.random_faults,
        {"runs": 8, "kills": 6, "freezes": 1, "drains": 1, "size": 3},
        {"runs": 100, "kills": 100, "freezes": 5, "drains": 5},
    ),
    Scenario("R2", "named crash points", worker_faults.crash_points, {"runs": 2}, {"runs": 13}),
    Scenario("R3", "server killed", server_faults.server_killed, {"kills": 2, "runs": 2}, {"kills": 20, "runs": 3}),
    Scenario(
        "R4",
        "server away",
        server_faults.server_away,
        {"freezes": 1, "frozen": 3, "stopped": 0, "runs": 2},
        {"freezes": 5, "frozen": 15, "stopped": 60, "runs": 4},
    ),
    Scenario("R5", "zombies", worker_faults.zombies, {"runs": 4}, {"runs": 20}),
    Scenario("R6", "rolling restart", worker_faults.rolling_restart, {"restarts": 3}, {"restarts": 20}),
    Scenario(
        "R1f",
        "kills at random moments, reads fused",
        worker_faults.random_faults,
        {"runs": 6, "kills": 5, "freezes": 1, "drains": 1, "size": 3, "fuses": True},
        {"runs": 100, "kills": 100, "freezes": 5, "drains": 5, "fuses": True},
    ),
    Scenario(
        "R2f",
        "named crash points, reads fused",
        worker_faults.crash_points,
        {"runs": 2, "fuses": True},
        {"runs": 13, "fuses": True},
    ),
    Scenario(
        "R5f", "zombies, reads fused", worker_faults.zombies, {"runs": 4, "fuses": True}, {"runs": 20, "fuses": True}
    ),
    Scenario(
        "R6f",
        "rolling restart, reads fused",
        worker_faults.rolling_restart,
        {"restarts": 2, "fuses": True},
        {"restarts": 20, "fuses": True},
    ),
    Scenario("R7", "signals three times", messages.signals, {"runs": 8, "kills": 1}, {"runs": 125, "kills": 10}),
    Scenario("R8", "messages to closed runs", messages.closed_runs, {}, {}),
    Scenario("R9", "one lane, many requests", lanes.fifo, {"requests": 64, "kills": 2}, {"requests": 1000, "kills": 3}),
    Scenario(
        "R10",
        "a flooded lane",
        lanes.flood,
        {"requests": 20, "size": 150_000, "healthy": 20, "ratio": None},
        {"requests": 10_000, "size": 10, "healthy": 100, "ratio": 1.5},
    ),
    Scenario(
        "R10l",
        "a flooded lane, under limits",
        lanes.flood,
        {"requests": 20, "size": 150_000, "healthy": 20, "ratio": None, "limited": True},
        {"requests": 10_000, "size": 10, "healthy": 100, "ratio": 1.5, "limited": True},
    ),
    Scenario("R13", "large results", answers.large_results, {}, {}),
    Scenario("R14", "storm", answers.storm, {"runs": 5}, {"runs": 100}),
    Scenario(
        "R14l", "storm, under limits", answers.storm, {"runs": 5, "limited": True}, {"runs": 100, "limited": True}
    ),
    Scenario("R15", "long model call", answers.long_call, {"seconds": 15}, {"seconds": 90}),
    Scenario(
        "R16",
        "root of a tree cancelled",
        trees.cancelled,
        {"fanout": 3, "levels": 2},
        {"fanout": 5, "levels": 3},
    ),
    Scenario(
        "R17",
        "follow-ups",
        followups.resolved_once,
        {"follow_ups": 3, "tasks": 8, "kills": 1},
        {"follow_ups": 8, "tasks": 25, "kills": 10},
    ),
    Scenario(
        "R18",
        "mailbox",
        mailboxes.exchanged,
        {"files": 120, "size": 3, "kills": 4},
        {"files": 1000, "size": 4, "kills": 50},
    ),
    Scenario(
        "plans",
        "a few beside many",
        mailboxes.shared,
        None,
        {"many": 200, "few": 5, "ratio": 0.4},
    ),
    Scenario("mail points", "a bridge dies at each", mailboxes.killed_at, {"messages": 2}, {"messages": 13}),
    Scenario(
        "R19",
        "endless, and over budget",
        trees.bounded,
        {"steps": 12, "tokens": 40_000},
        {"steps": 60, "tokens": 400_000},
    ),
    Scenario(
        "R20",
        "full disk",
        full_disk.full_disk,
        {"seconds": 4, "runs": 3, "mounted": False},
        {"seconds": 15, "runs": 10, "mounted": True},
    ),
    Scenario("R22", "soak", soak.soak, None, {"minutes": 5, "rate": 2}),
    Scenario(
        "R26",
        "pooled batches",
        batches.pooled,
        {"runs": 6, "kills": 3, "server_kills": 0, "size": 3},
        {"runs": 60, "kills": 18, "server_kills": 3, "size": 10},
    ),
    Scenario(
        "R27",
        "kills around approvals",
        approvals.killed_between,
        {"rounds": 6},
        {"rounds": 48},
    ),
    Scenario(
        "R28",
        "many questions, many doors",
        inbox.answered_at_once,
        {"questions": 20, "gateways": 3},
        {"questions": 100, "gateways": 3},
    ),
    Scenario(
        "R31",
        "a budget of many runs",
        budgets.limited,
        {"runs": 6, "steps": 20, "size": 3, "kills": 2, "calls": 80},
        {"runs": 160, "steps": 40, "size": 4, "kills": 8, "calls": 2200},
    ),
    Scenario(
        "R32",
        "a stop for all",
        pauses.paused,
        {"runs": 12, "size": 3, "kills": 3, "pause": 0.2},
        {"runs": 400, "size": 4, "kills": 8, "pause": 5.0},
    ),
    Scenario(
        "R33",
        "places",
        places.placed,
        {"runs": 10, "size": 3, "kills": 2, "agents": 4, "tools": 1},
        {"runs": 60, "size": 4, "kills": 10, "agents": 12, "tools": 2},
    ),
    Scenario(
        "fleet",
        "one limit for the fleet",
        limits.shared,
        None,
        {"runs": 80, "steps": 20, "size": 8, "rate": 10, "windows": 4},
    ),
    Scenario(
        "owners",
        "fair shares",
        lanes.owners,
        {"conversations": 10, "requests": 2, "replies": 0.2, "measured": 3, "ratio": None, "gain": None},
        {"conversations": 200, "requests": 3, "replies": 60, "measured": 10, "ratio": 2.5, "gain": None},
    ),
    Scenario(
        "owners-full",
        "fair shares of full cores",
        lanes.owners,
        None,
        {"conversations": 200, "requests": 5, "replies": 0, "measured": 10, "ratio": None, "gain": 4},
    ),
    Scenario("media", "images and a typed result", media.seen_and_typed, {"runs": 1}, {"runs": 4}),
    Scenario("window", "share in doubt", worker_faults.window, None, {"kills": 60}),
)
