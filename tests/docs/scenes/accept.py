"""docs/accept.md"""

from perdure.testkit.model_server import Reply, calls
from tests.docs.stage import Scene


def write(text: str) -> Reply:
    return calls(("write_file", {"path": "artifacts/report.md", "content": text}))


DONE = calls(("finish", {"outcome": "The report is written."}))
SCENE = Scene(
    "docs/accept.md", dev=False, model=[write("It is so."), DONE, write("It is so: https://example.org"), DONE]
)
