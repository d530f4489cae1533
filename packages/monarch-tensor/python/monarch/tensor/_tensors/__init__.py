"""Mesh tensors, the meshes and streams in which they live, and operations on them.

`Tensor` is in `mesh`, which is built on the other modules. They make tensors through `tensor_base`: each import of the package loads
`mesh`.
"""

from monarch.tensor._tensors import mesh as mesh
