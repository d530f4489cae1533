"""Values in the form of messages: a pickle and, out of band, the memory of arrays and tensors. The receivers of a message, for objects that
need them.
"""

from monarch._core.extension.receivers import Receivers, receivers
from monarch._core.pickle.pickling import dumps, dumps_for_same_program, loads
from monarch._core.pickle.tensor import modes_off

__all__ = ["Receivers", "dumps", "dumps_for_same_program", "loads", "modes_off", "receivers"]
