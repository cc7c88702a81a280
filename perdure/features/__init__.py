"""The features: what a run can do without. Each is a folder of one shape, with its row in its `__init__`.

It has the files that it needs of these: `contract` (what is said), `rules` (what next; pure), `workflow` (when),
`calls` (of its tools, by a run), `activities` (how), `commands`, `routes`, `settings`, `project` (its part of a
worker's project). `perdure.registry` reads the rows; nothing else imports a feature.
"""
