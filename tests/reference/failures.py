"""`failures.md`: everything that can be wrong, by the kind that is reported, from the enums of the code."""

from enum import StrEnum

from perdure.contracts.conversation import LaneFault
from perdure.contracts.failures import Escalation, RunFailure, Stop, ToolFault
from perdure.features.follow_ups.contract import FollowUpFailure
from perdure.features.reconciler.contract import FindingKind
from perdure.gateway.problems import ProblemKind
from tests.reference.markdown import code, page, table
from tests.reference.meanings import meanings

INTRO = "Each word is reported where it happens: in the terminal, in Temporal's Web UI, in logs and in events."
SECTIONS: tuple[tuple[str, type[StrEnum], str], ...] = (
    (
        "Failed runs",
        RunFailure,
        (
            "A run that ended Failed says one of these, as the type of its failure. Once the cause is mended, "
            "`perdure resume RUN` goes on with it; no effect is repeated."
        ),
    ),
    (
        "Escalations",
        Escalation,
        (
            "The `reason` of an [`agent.escalated`](events.md#agentescalated) event: the run gives its task back "
            "to a person."
        ),
    ),
    (
        "Errors of tools",
        ToolFault,
        (
            "The `kind` of a call's error. The model gets it, and decides what to do; a person has to do something "
            "only where it comes again. Tools outside may say words of their own."
        ),
    ),
    (
        "Conversations",
        LaneFault,
        (
            "Why a lane does not take a request: the type of the refused update `submit`. By HTTP it is a "
            "[problem](#http)."
        ),
    ),
    ("Follow-ups", FollowUpFailure, "A follow-up that ended Failed says one of these."),
    (
        "HTTP",
        ProblemKind,
        (
            "A refusal of the [gateway](http.md) is problem details (RFC 9457). Its status says most of it, and `type` "
            "is `about:blank` then; otherwise `type` is `urn:perdure:` and one of these."
        ),
    ),
    (
        "Findings of the reconciler",
        FindingKind,
        (
            "Told by `perdure doctor` and the event `agent_run.reconcile`, each with what to do "
            "([when it looks](../architecture.md#the-reconciler))."
        ),
    ),
    (
        "Stops",
        Stop,
        (
            "No failures of runs: an activity hands the decision back to its run. They are seen in the Web UI, as "
            "failed attempts."
        ),
    ),
)


def failures() -> str:
    parts = [INTRO]
    for title, words, summary in SECTIONS:
        parts += [f"## {title}", summary, list_words(words)]
    return page("Failures", *parts)


def list_words(words: type[StrEnum], head: str = "word") -> str:
    said = meanings(words)
    return table((head, "means"), ((code(each.value), said.get(each.name, "")) for each in words))
