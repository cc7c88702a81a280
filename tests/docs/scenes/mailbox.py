"""docs/mailbox.md"""

from perdure.testkit.model_server import calls
from tests.docs.stage import Scene, Stage, Step


def is_answered(stage: Stage) -> None:
    """The message of the page is a task, its input was found, and a reply lies in the outbox."""
    reply = stage.folder / "editor" / "outbox" / "spring" / "t1-reply.md"
    stage.until(reply.exists, "the reply")
    assert "Sold: 7" in reply.read_text(encoding="utf-8")


SCENE = Scene(
    "docs/mailbox.md",
    steps={"perdure mail": Step(until="editor")},
    files={
        "agents/editor.md": "---\ndescription: sums up\ntools: []\n---\nYou sum up.\n",
        "editor/inputs/2026/sales.csv": "7\n",
    },
    model=[calls(("finish", {"outcome": "Sold: 7."}))],
    claim=is_answered,
)
