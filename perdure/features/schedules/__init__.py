"""Schedules: runs that start by a calendar.

client    the schedules of a task queue
commands  `schedule`
rules     a cron line: its time zone, and the lines that are rejected
"""

from perdure.registry import Command, Feature

FEATURE = Feature(
    commands={
        "schedule": Command("perdure.features.schedules.commands:schedule_command", "Runs", "Start runs on a schedule.")
    },
)
