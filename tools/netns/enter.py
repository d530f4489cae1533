"""Runs a command in the namespaces of a process: `python -IS enter.py PID COMMAND...`; ends as the command does.

`nsenter` is not used: it stops itself when its command is stopped, and then does not reap it, so hosts with a frozen process would
not end. Only a fork enters a namespace of processes, so this process stays, and waits. If it ends first, the kernel
kills the command.
"""

import ctypes
import os
import signal
import sys

KINDS = ("net", "uts", "ipc", "mnt", "pid")
_PR_SET_PDEATHSIG = 1


def main(first: str, *command: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    folder = os.getcwd()
    handles = [os.open(f"/proc/{first}/ns/{kind}", os.O_RDONLY) for kind in KINDS]
    for handle in handles:
        if libc.setns(handle, 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(handle)
    os.chdir(folder)
    child = os.fork()
    if child == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # Python ignores this signal, and the command would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(127)
    # A terminal's Ctrl-C is for the command.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
