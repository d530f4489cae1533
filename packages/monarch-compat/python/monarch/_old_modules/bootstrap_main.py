"""The program of a proc under its name in torchmonarch 0.7: `python -m monarch._src.actor.bootstrap_main`.

A host starts it with the environment of a proc. Started by hand it ends with the reason.
"""

from monarch.extension import run_proc


def invoke_main() -> None:
    """Runs the proc until it ends."""
    run_proc()


if __name__ == "__main__":
    invoke_main()
