"""The commands of `perdure`.

agents      `agents`
answer      `answer`, `approve`, `deny`, `cancel`
chat        `chat`
completion  `completion`
control     `worker`, `dev`, `doctor`
event       `event`
export      `trace --export`
gateway     `gateway`
mail        `mail`
new         `new`, which copies the files in project/
run         `run`, `watch`, `resume`, `fork`
schedule    `schedule`
show        `list`, `show`, `trace`, `tools`
token       `token`
crashtest/  `crashtest`: the case, kills, plays, verdicts
evaluate/   `eval`: cases, runs, scores
people/     `questions`; `list --dead`, `redeliver`
mcp/        `mcp`, and the MCP servers of `tools`
policy/     `policy`: check, test, explain
"""
