"""People: what a run asks them, which answers it takes, what they are notified of, and the work that they begin.

approvals  the open questions about a run's calls, and the effect of their answers
form       forms: answers of plain fields
plan       the plan of a run: the calls of a dry run that its starter approves
signature  the content that a signed answer covers, and the check of its signature
terms      the terms on which people approve a call, senders, and the work that runs pass on
"""
