"""The `monarch` command, for wheels that run it where its script may not be on the path, and a function that runs a wheel's own command
like it.
"""

from monarch._core.cli import Elsewhere, main, run_command

__all__ = ["Elsewhere", "main", "run_command"]

if __name__ == "__main__":
    main()
