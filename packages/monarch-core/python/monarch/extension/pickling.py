"""Values as messages carry them: a pickle, and apart from it the memory of arrays and tensors. Who gets a message, for objects that ask."""

from monarch._core.extension.receivers import Receivers, receivers
from monarch._core.pickle.pickling import dumps, dumps_for_same_program, loads
from monarch._core.pickle.tensor import modes_off

__all__ = ["Receivers", "dumps", "dumps_for_same_program", "loads", "modes_off", "receivers"]
