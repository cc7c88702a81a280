"""Schedules: runs that start by a calendar.

client    the schedules of a task queue
commands  `schedule`
routes    the gateway's list of schedules
rules     a cron line: its time zone, and the lines that are rejected
"""

from perdure.registry import Command, Feature

FEATURE = Feature(
    routes="perdure.features.schedules.routes:router",
    commands={
        "schedule": Command("perdure.features.schedules.commands:schedule_command", "Runs", "Start runs on a schedule.")
    },
)
