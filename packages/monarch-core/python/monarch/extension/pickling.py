"""Values as messages carry them: a pickle, and apart from it the memory of arrays and tensors."""

from monarch._core.pickle.pickling import dumps, dumps_for_same_program, loads

__all__ = ["dumps", "dumps_for_same_program", "loads"]
