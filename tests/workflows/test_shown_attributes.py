"""Whether search attributes are set anew does not depend on encryption, which may change while a run waits."""

from typing import Any

import pytest
from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from perdure.activities.telemetry.attributes import AGENT_STATUS, WAITING_FOR
from perdure.workflows import search_attributes
from perdure.workflows.search_attributes import ShownAttributes

PLAIN, HIDDEN = "human: Which one?", "human: a question"


def of(status: str, text: str) -> TypedSearchAttributes:
    return TypedSearchAttributes([SearchAttributePair(AGENT_STATUS, status), SearchAttributePair(WAITING_FOR, text)])


@pytest.mark.parametrize("before", [PLAIN, HIDDEN])
@pytest.mark.parametrize("is_confidential", [False, True])
def test_a_question_that_an_earlier_execution_showed_is_not_shown_again(
    before: str, is_confidential: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[dict[str, Any]] = []
    monkeypatch.setattr(search_attributes, "is_confidential", lambda: is_confidential)
    monkeypatch.setattr(
        workflow,
        "upsert_search_attributes",
        lambda updates: events.append({update.key.name: update.value for update in updates}),
    )
    shown = ShownAttributes.__new__(ShownAttributes)
    shown._shown, shown._is_unsearchable = of("waiting_on_human", before), False
    shown.update(lambda hides: of("waiting_on_human", HIDDEN if hides else PLAIN))
    assert events == []
    shown.update(lambda hides: of("waiting_on_human", HIDDEN if hides else "human: And now?"))
    assert events == [{"WaitingFor": HIDDEN if is_confidential else "human: And now?"}]
