"""Proof: crash tests, evaluation and replay of an agent.

contract   cases, the facts of runs and plays, kills, scores
rules      the checks of a run against its expectation, the kills for a history, the differences between two plays
case       cases, read from files and made from past runs
facts      the facts of a run
play       a play: a run whose questions are answered as a case or a record says
evaluate   `eval`: the runs of a table of cases
crashtest  `crashtest`: the whole play, the killed ones, and their verdicts
worker     a worker of a crash test, which kills itself at one moment
replay     `replay`: past runs played with another model or agent
policy     `replay --policy`: a policy tried on past runs
report     the reports: tables, JSON, JUnit XML
commands   the commands
"""

from perdure.registry import Command, Feature

FEATURE = Feature(
    commands={
        "replay": Command(
            "perdure.features.proof.commands:replay_command",
            "Inspection",
            "Try a policy, a model or an agent on past runs.",
        ),
        "eval": Command(
            "perdure.features.proof.commands:eval_command",
            "Projects",
            "Run a table of test goals and report the pass rate.",
        ),
        "crashtest": Command(
            "perdure.features.proof.commands:crashtest_command",
            "Projects",
            "Play a case whole, and once for each kill of its worker or server.",
        ),
    },
)
