"""The shape operations of every mesh: slice, split, flatten, rename, size.

Each operation computes a new labelled `Slice` over the same ranks and passes it to the mesh's class, which therefore only needs to
take a sub-space of itself.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from monarch._core.shape.shape import Extent, Shape, chosen_range
from monarch._core.shape.slice import Slice, as_index, row_major_strides

if TYPE_CHECKING:
    import builtins
    from collections.abc import Sequence
    from typing import Any, Self


class MeshTrait(ABC):
    """A labelled n-dimensional collection of ranks.

    Implementors provide `_ndslice`, `_labels` and `_new_with_shape`; the latter is called only with shapes whose ranks are all in
    `_ndslice`.
    """

    __slots__ = ()

    # Whether an operation that changes nothing returns the mesh itself instead of `_new_with_shape` of its own shape.
    _whole_slice_is_self = False

    @property
    @abstractmethod
    def _ndslice(self) -> Slice: ...

    @property
    @abstractmethod
    def _labels(self) -> tuple[str, ...]: ...

    @abstractmethod
    def _new_with_shape(self, shape: Shape) -> Self: ...

    def _with(self, labels: Sequence[str], ndslice: Slice) -> Self:
        shape = Shape(labels, ndslice)
        if self._whole_slice_is_self and ndslice == self._ndslice and tuple(labels) == tuple(self._labels):
            return self
        return self._new_with_shape(shape)

    def slice(self, /, **dims: int | builtins.slice[Any, Any, Any]) -> Self:
        """The part of the mesh at these places, a reference: an int removes its dimension, a slice keeps it and may leave it empty.

        Args:
            **dims: label to index, from 0, or to a `slice` with a positive step.

        Returns:
            A mesh of the same kind.

        Raises:
            TypeError: a label is unknown, or a place is neither an int nor a slice.
            IndexError: an int is negative or too large.
            ValueError: a step is not positive.

        ```python
        from monarch.actor import this_host

        with this_host().spawn_procs({"replicas": 2, "gpus": 2}) as procs:
            assert procs.slice(replicas=0).sizes == {"gpus": 2}
            assert procs.slice(gpus=slice(0, 1)).sizes == {"replicas": 2, "gpus": 1}
        ```
        """
        labels = list(self._labels)
        ndslice = self._ndslice
        for label, selector in dims.items():
            if label not in labels:
                raise TypeError(f"no dimension {label!r} in {self.extent}")
            axis = labels.index(label)
            size = ndslice.sizes[axis]
            if isinstance(selector, slice):
                ndslice = ndslice._narrow(axis, chosen_range(label, size, selector))
                continue
            if not hasattr(type(selector), "__index__"):
                raise TypeError(f"slice({label}={selector!r}): expected an int or a slice, not {type(selector).__name__}")
            i = as_index(selector)
            if not 0 <= i < size:
                raise IndexError(f"index {i} out of range for dimension {label!r} of size {size}")
            ndslice = ndslice._drop(axis, i)
            del labels[axis]
        return self._with(labels, ndslice)

    def split(self, /, **dims: Sequence[str] | int) -> Self:
        """The mesh with dimensions divided: `split(hosts=("dp", "pp"), pp=2)` makes `hosts` a row-major `dp` by `pp`.

        One size per divided dimension may be left out. `ValueError` if sizes do not fit, are missing, unused or not ints, or a name occurs
        twice.
        """
        labels = tuple(self._labels)
        parts: dict[str, tuple[str, ...]] = {}
        given: dict[str, int] = {}
        for key, value in dims.items():
            if key in labels:
                if isinstance(value, str | int):
                    raise ValueError(f"expected a sequence of dimension names for {key!r}, got {value!r}")
                parts[key] = tuple(value)
            elif isinstance(value, int):
                given[key] = value
            else:
                raise ValueError(f"no dimension {key!r} in {self.extent}; a new one is given an int as its size, not {value!r}")
        names = [name for label in labels for name in parts.get(label, (label,))]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"duplicate dimension name {name!r} in {names}")
        unused = [name for name in given if name not in names]
        if unused:
            raise ValueError(f"sizes of unknown dimensions: {unused}; {self.extent} is split into {names}")

        ndslice = self._ndslice
        sizes: list[int] = []
        strides: list[int] = []
        for label, size, stride in zip(labels, ndslice.sizes, ndslice.strides, strict=True):
            divided = _divide(label, size, parts[label], given) if label in parts else (size,)
            sizes += divided
            strides += [step * stride for step in row_major_strides(divided)]
        return self._with(names, Slice(offset=ndslice.offset, sizes=sizes, strides=strides))

    def flatten(self, name: str) -> Self:
        """The mesh with one dimension of all its ranks, in row-major order; `ValueError` if these are not consecutive."""
        ndslice = self._ndslice
        if not ndslice._is_row_major():
            raise ValueError(f"cannot flatten sparse mesh: ranks of {self.extent} are not consecutive, strides are {ndslice.strides}")
        return self._with((name,), Slice(offset=ndslice.offset, sizes=(len(ndslice),), strides=(1,)))

    def rename(self, /, **names: str) -> Self:
        """The mesh with dimensions renamed, `rename(hosts="dp")`; `ValueError` if one is unknown or a name occurs twice."""
        for label in names:
            if label not in self._labels:
                raise ValueError(f"no dimension {label!r} in {self.extent}")
        return self.split(**{label: (name,) for label, name in names.items()})

    def size(self, dim: str | Sequence[str] | None = None) -> int:
        """The number of elements.

        Args:
            dim: a label, or several; without it, all dimensions count.

        Returns:
            The product of the sizes of these dimensions.

        Raises:
            KeyError: a dimension is unknown.

        ```python
        from monarch.actor import this_host

        with this_host().spawn_procs({"replicas": 2, "gpus": 3}) as procs:
            assert (procs.size(), procs.size("gpus"), procs.size(("replicas", "gpus"))) == (6, 3, 6)
        ```
        """
        if dim is None:
            return len(self._ndslice)
        labels = tuple(self._labels)
        sizes = self._ndslice.sizes
        total = 1
        for label in (dim,) if isinstance(dim, str) else dim:
            if label not in labels:
                raise KeyError(f"no dimension {label!r} in {self.extent}")
            total *= sizes[labels.index(label)]
        return total

    @property
    def sizes(self) -> dict[str, int]:
        """Label to size, in order."""
        return dict(zip(self._labels, self._ndslice.sizes, strict=True))

    @property
    def extent(self) -> Extent:
        """Labels and sizes."""
        return Extent(self._labels, self._ndslice.sizes)

    def __len__(self) -> int:
        return len(self._ndslice)


def _divide(label: str, size: int, names: tuple[str, ...], given: dict[str, int]) -> tuple[int, ...]:
    known = 1
    missing: list[str] = []
    for name in names:
        if name not in given:
            missing.append(name)
        elif given[name] < 0:
            raise ValueError(f"negative size {given[name]} of dimension {name!r}")
        else:
            known *= given[name]
    if len(missing) > 1:
        raise ValueError(f"sizes of {missing} are all unknown: at most one of {list(names)} can be inferred from {label!r} of size {size}")
    fits = known == size if not missing else known > 0 and size % known == 0
    if not fits:
        shown = ", ".join(f"{name}={given.get(name, '?')}" for name in names)
        raise ValueError(f"dimension {label!r} of size {size} is not evenly divided by {shown or 'no dimensions'}")
    return tuple([given[name] if name in given else size // known for name in names])
