"""Names for array annotations such as Float[Array, "b k 2"]: checked in tests, free at run time.

jaxtyping is a dependency of the tests alone; without it the same annotations mean a plain array.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, UInt8
else:
    try:
        from jaxtyping import Array, Bool, Float, Int, UInt8
    except ModuleNotFoundError:

        class _Shape:
            """Stands in for jaxtyping's types: _Shape[Array, "b k"] is Any."""

            def __class_getitem__(cls, item: Any) -> Any:
                return Any

        Array = Any
        Bool = Float = Int = UInt8 = _Shape

__all__ = ["Array", "Bool", "Float", "Int", "UInt8"]
