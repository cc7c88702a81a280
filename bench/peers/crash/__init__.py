"""The agent of `python -m bench.crash` in other frameworks, each as its own documentation writes it.

NAME.py   its worker: `work` serves until it is killed; `..NAME.lock` pins what its environment holds
serving   what workers of Temporal have in common

The rest comes from `bench.crash.tools`: nothing of ours is installed there.
"""
