"""How fast the gateway's page is in a browser: `python -m bench.page` from the root.

course    made-up runs, as events of the real classes
project   a made-up project: runs, questions, agents, conversations, lists
server    the page's real files and headers, and the made-up answers
measures  what a browser takes, one measure a function
pictures  the pictures of the docs, from the same server: `python -m bench.page.pictures`
__main__  the command line and the table
"""
