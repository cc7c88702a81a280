"""docs/audit.md"""

import json

from tests.docs.stage import Scene, Stage


def the_record_is_whole(stage: Stage) -> None:
    record = json.loads((stage.here / "run.json").read_text(encoding="utf-8"))
    assert (record["run_id"], record["status"], record["missing"]) == ("audited", "completed", [])
    assert [call["tool"] for call in record["calls"]] == ["fetch", "write_file", "finish"]


SCENE = Scene("docs/audit.md", claim=the_record_is_whole)
