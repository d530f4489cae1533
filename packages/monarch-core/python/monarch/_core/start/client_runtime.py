"""The runtime of the client beside the script: housekeeping, log, stacks, interrupts, the exit.

The exit and the report of a failure import nothing: no descriptor may be left then to read a module from its file.
"""

from __future__ import annotations

import sys
from _thread import start_new_thread

from monarch._core._native import thread_limit
from monarch._core.call import failure_imports as _failure_imports
from monarch._core.config import duration as _duration
from monarch._core.config.config import warn_misspelt
from monarch._core.process import log_directory as _log_directory
from monarch._core.process import recorder, runtime_log, stacks
from monarch._core.process.current import set_process
from monarch._core.process.environment import host_name, is_main_thread, is_start_variable, native_variables
from monarch._core.process.interrupt import listen
from monarch._core.process.process import LocalProcess
from monarch._core.start.housekeeping import run_client
from monarch._core.start.shutdown import register_exit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core._native import Process as NativeProcess

# Only the exit and failures use these modules.
del _duration, _failure_imports, _log_directory


def begin(native: NativeProcess) -> LocalProcess:
    """Makes this process the client, on its native node."""
    process = LocalProcess(native, host_name(), "client")
    variables = native_variables()
    process.place.start_variables = {name: value for name, value in variables.items() if is_start_variable(name)}
    try:
        start_new_thread(run_client, (process,))
    except RuntimeError as e:
        raise RuntimeError(f"cannot start the runtime: {e}{thread_limit()}") from None
    set_process(process)
    register_exit(process)
    if is_main_thread():
        listen()
    stacks.install(process)
    runtime_log.start(process)
    recorder.start(process)
    runtime_log.event("client.start")
    warn_misspelt(variables)
    if "IPython" in sys.modules:
        from monarch._core.observe.notebook import install

        install(process)
    return process
