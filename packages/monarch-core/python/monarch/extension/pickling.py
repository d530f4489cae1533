"""Values in the form of messages: a pickle and, out of band, the memory of arrays and tensors. The receivers of a message, for objects that
need them. Reducers of a program's own types, and objects that are taken out of a pickle.
"""

from monarch._core.extension.receivers import Receivers, receivers
from monarch._core.pickle.flattening import flatten, unflatten
from monarch._core.pickle.pickling import dumps, dumps_for_same_program, loads
from monarch._core.pickle.reducers import register
from monarch._core.pickle.tensor import modes_off

__all__ = ["Receivers", "dumps", "dumps_for_same_program", "flatten", "loads", "modes_off", "receivers", "register", "unflatten"]
