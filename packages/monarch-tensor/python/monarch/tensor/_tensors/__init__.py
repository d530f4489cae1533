"""Mesh tensors, the meshes and streams in which they live, and operations on them.

`tensor` is built on the other modules, and they make tensors through `tensor_base`: each import of this package loads `tensor`.
"""

from monarch.tensor._tensors import tensor as tensor
