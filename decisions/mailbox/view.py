"""The text that people read about a mailbox: its messages, and the Web UI's current details."""

from collections import Counter
from collections.abc import Sequence

from contracts.mail.commands import BridgeTask, BridgeTaskKind
from contracts.mail.delivery import Ack, InboxMessage, Stage, TaskState
from contracts.mail.mailbox import AckView, MailboxState, MailboxView
from decisions.mailbox.delivery import ack_of, has_passed
from decisions.text.formatting import escape_markdown, truncate

SHOWN = 5


def summarize_orders(orders: Sequence[BridgeTask]) -> str:
    """Return a line such as `take 2 · finish 1`, for the Web UI's timeline."""
    kinds = Counter(order.kind for order in orders)
    return " · ".join(f"{kind} {kinds[kind]}" for kind in BridgeTaskKind if kinds[kind])


def mailbox_view(state: MailboxState) -> MailboxView:
    to_do = (Stage.admitted, Stage.ending, Stage.outgoing)
    return MailboxView(
        **state.model_dump(include={"agent", "accepted", "skipped", "failed", "notices"}),
        recent=state.recent,
        open=tuple(map(_view_letter, state.letters)),
        orders=len(state.orders) + sum(letter.stage in to_do or letter.untold for letter in state.letters),
    )


def _view_letter(letter: InboxMessage) -> AckView:
    last = letter.transitions[-1] if letter.transitions else None
    return ack_of(
        letter,
        stage=letter.stage,
        state=last.state if last and not letter.is_reply else None,
        ack=Ack.consumed if has_passed(letter, TaskState.consumed) else None,
        details=letter.ending.details if letter.ending else "",
        undecided=letter.undecided,
        at=last.at if last else letter.heard_at,
    )


def format_mailbox_details(state: MailboxState) -> str:
    """Return the Web UI's current details, in Markdown."""
    stages = [letter.stage for letter in state.letters]
    counts = [f"{stages.count(stage):,} {stage}" for stage in Stage if stage in stages] or ["empty"]
    totals = f"{state.accepted:,} accepted · {state.skipped:,} skipped · {state.failed:,} failed"
    blocks = [f"**{' · '.join(counts)}** · {totals}"]
    if state.dead:
        reason = escape_markdown(truncate(state.dead[-1].why, 120))
        last = _escape_code(state.dead[-1].file)
        blocks.append(f"**Dead letters** {len(state.dead):,}, the last one `{last}`: {reason}")
    if state.notices:
        blocks.append(f"**Ignored** {escape_markdown(state.notices[-1])}")
    lines = [
        f"- {ack.ack} `{_escape_code(ack.message_id)}` {escape_markdown(ack.details)}"
        for ack in state.recent[: -SHOWN - 1 : -1]
    ]
    return "\n\n".join([*blocks, *(["\n".join(["**Lately**", "", *lines])] if lines else [])])


def _escape_code(text: str) -> str:
    return truncate(text, 80).replace("`", "'")
