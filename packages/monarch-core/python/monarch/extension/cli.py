"""The `monarch` command, for wheels that run it where its script may not be on the path: `from monarch.extension.cli import main`."""

from monarch._core.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
