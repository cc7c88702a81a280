"""`docs/llms.txt`: the pages of the documentation for a language model, in the form of llmstxt.org."""

import re
from pathlib import Path

from perdure import cli

DOCS = Path(cli.__file__).parents[1] / "docs"
LINK = re.compile(r"\]\(([^)#]+\.md)")
MAX_ABOUT = 240  # characters of what a page is about
HEAD = """# Perdure

> Perdure runs LLM agents that survive crashes, built on Temporal. Each run is a Temporal workflow; model turns and tool
> calls are activities. Tools declare their effect (`read`, `keyed`, `once`); the runtime repeats no `once` call.

Install: `pip install 'perdure[all]'`. First commands: `perdure demo`, `perdure doctor`, `perdure COMMAND --help`, and
`perdure new FOLDER`, whose `AGENTS.md` says how to add tools, test and crash-test. Addresses are relative to this file.
"""


def llms() -> str:
    sections = re.split(r"^## ", (DOCS / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    made, seen = [HEAD, "## Start\n\n- [Tutorial](tutorial.md): " + _about(DOCS / "tutorial.md")], {"tutorial.md"}
    for section in sections[1:]:
        title, _, body = section.partition("\n")
        named = [link for link in dict.fromkeys(LINK.findall(body)) if link not in seen]
        seen.update(named)
        made.append(f"\n## {title}\n")
        made += [f"- [{_title(DOCS / link)}]({link}): {_about(DOCS / link)}" for link in named]
    return "\n".join(made) + "\n"


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _about(page: Path) -> str:
    """Return the first sentences of a page, without its links."""
    blocks = page.read_text(encoding="utf-8").split("\n\n")
    prose = next((block for block in blocks[1:] if block[:1].isalpha() or block[:1] in "`*["), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split()).replace("**", ""))
    if len(plain) <= MAX_ABOUT:
        return plain
    end = plain.rfind(". ", 0, MAX_ABOUT)
    return plain[: end + 1] if end > 0 else f"{plain[: plain.rfind(' ', 0, MAX_ABOUT)]} …"
