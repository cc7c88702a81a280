"""Project questions: one question to people for which many runs wait, such as a login or a budget.

A feature opens one by an id of its own, and says by a subject what an answer does (`Feature.on_answer`).

activities  what an answer does, and the release of the runs that wait for it
client      open, read and close a question; wait for it in an activity
commands    a question in `show`
contract    a question, its answer, and its state
rules       which answers it takes, and how it is shown
workflow    `ProjectQuestion`
"""

from perdure.registry import Addressed, Feature

FEATURE = Feature(
    workflows=("perdure.features.project_questions.workflow:ProjectQuestion",),
    activities=("perdure.features.project_questions.activities:ProjectQuestions",),
    addressed={
        "question:": Addressed(
            query="perdure.features.project_questions.client:query_question",
            show="perdure.features.project_questions.commands:print_project_question",
        )
    },
)
