"""What a step costs: `AgentRun` beside `raw-min`, the least that Temporal can do. `python -m bench` from the root.

work      T(n, s), the work that both sides do
raw_min   the floor: a hand-written workflow with one model and one tool activity a step
ours      the same work as an agent run
worker    one side's worker, in a process of its own, so that its CPU is counted apart
side      starts a worker and runs work on it
reports   how a worker is asked what it did
measure   one run, or one question about many
actions   billable actions of Temporal, as the server counts them
rows      the figures of the scorecard, each beside its target
peers     the same work in other frameworks
peer      a peer's environment, its worker and runs on it
peer_rows the figures of peers
scale     what many of a kind take: `python -m bench.scale`
mail      what a file costs a mailbox: `python -m bench.mail`
gateway   how many requests a gateway answers: `python -m bench.gateway`
page/     how fast the gateway's page is in a browser: `python -m bench.page`
crash/    what becomes of a payment where the worker dies in it: `python -m bench.crash`
results/  what it found
__main__  the command line and the tables
"""
