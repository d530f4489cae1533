"""The program of a worker pod of torchmonarch 0.7, for manifests that programs write themselves.

It needs the variable `MONARCH_PORT`, or listens on port 26600. What always holds: the worker has the credentials that the job gives to the
pod (`MONARCH_JOB_SECRET_FILE`), and trusts all connections only with `MONARCH_TRUST_ALL=1`.
"""

PROGRAM = """\
import os

from monarch.actor import run_worker_loop_forever

run_worker_loop_forever(address=f"tcp://*:{os.environ.get('MONARCH_PORT', '26600')}")
"""
