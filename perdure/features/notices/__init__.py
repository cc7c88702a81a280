"""Notices to people about runs: a question waits, a run has ended.

activities  `send_notice` and `is_question_open`
announce    the start of a notice, as a run asks or ends
channels    the channels: a signed webhook, Slack, and the services of Apprise
contract    a notice, and the channels that it goes to
project     the channels, as the settings describe them
rules       the notices of a run, and the channels that get them
settings    `[[notify]]`: the channels, and their addresses and secrets
workflow    `Notify`: a notice, and its retries
"""

from perdure.registry import Feature

FEATURE = Feature(
    workflows=("perdure.features.notices.workflow:Notify",),
    activities=("perdure.features.notices.activities:Notices",),
    dead_letters={"Notify": "perdure.features.notices.contract:NoticeRequest"},
    tables=("perdure.features.notices.settings:NOTIFY",),
    flaws="perdure.features.notices.project:find_idle_channels",
    project="perdure.features.notices.project:create_channels",
    check_worker="perdure.features.notices.project:check_channels",
    on_open="perdure.features.notices.channels:open_routes",
    on_question="perdure.features.notices.announce:announce_question",
    on_end="perdure.features.notices.announce:announce_end",
)
