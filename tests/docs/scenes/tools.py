"""docs/tools.md"""

from perdure.testkit.model_server import calls, says
from tests.docs.stage import Scene, Step

SCENE = Scene(
    "docs/tools.md",
    dev=False,
    model=[calls(("price", {"article": "mug", "pieces": 3})), says("Three mugs cost 7.50.")],
    steps={"perdure tools": Step(shows="price"), "perdure run": Step(shows="✓ price mug")},
)
