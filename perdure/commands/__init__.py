"""The commands of `perdure`.

answer     `answer`, `approve`, `deny`, `cancel`
chat       `chat`
control    `worker`, `dev`, `doctor`, `completion`
demo       `demo`, which serves the pages in site/
export     `trace --export`
gateway    `gateway`, `token`
new        `new`, which copies the files in project/
policy     `policy`: check, test, explain, accept
questions  `questions`; `list --dead`, `redeliver`
run        `run`, `watch`, `resume`, `fork`
show       `list`, `show`, `trace`, `tools`, `agents`
"""
