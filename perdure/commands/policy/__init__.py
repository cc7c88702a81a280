"""`perdure policy`.

accept   `policy accept`: the present policy for an open run
cases    `policy test`: calls with facts, and the verdicts that are expected
explain  `policy explain`: the verdict on a call of a run
replay   `replay --policy`: a policy tried on past runs
policy   the group, and `policy check`
"""
