"""docs/record.md"""

from tests.docs.stage import Scene, Step

SCENE = Scene(
    "docs/record.md",
    steps={
        "perdure verify run.record --key record.pub --artifacts": Step(shows="signed with "),
        "perdure verify forged.record": Step(code=1),
    },
    not_run={
        "perdure trace signed --export run.record --sign record.key --timestamp": "needs an authority of the reader's",
        "perdure verify run.record --key record.pub --tsa-cert": "as above; tests/e2e/test_timestamps.py plays both",
    },
)
