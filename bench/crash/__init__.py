"""How often a payment is made where the worker dies in it, in Perdure and beside it. `python -m bench.crash`.

server    the payment server, which counts, and says when a run is at its moment
model     the script of the model
tools     what the agent of every side calls; in peers' workers, too
nursery   forks a side's workers; in peers' environments, too
workers   a nursery and its workers, from the driver
worker    Perdure's worker
shop/     Perdure's project: its tools and its agent
sides     the sides, and how a run of each is started, looked at and answered
trial     one trial: start, kill, start again, await
results   the file of results
cost      what the same run costs without a kill
page      the table of `docs/never-twice.md`
__main__  the command line

The same agent in other frameworks is in `bench/peers/crash`.
"""
