"""`python worker.py` starts a worker; its code is `perdure.process.worker`."""

from perdure.process.worker import run_worker_program

if __name__ == "__main__":
    run_worker_program()
