"""The descriptor's messages: the schema, the wire format, JAX's types and parameters in it, and the debug table.

Here: what turns a value of JAX's into bytes, whatever kernel or primitive it is of. Imports `_versions`.
"""

from smalt._messages.attrs import Axes, Opaque, attr, attributes, named_attributes, numbered_attributes
from smalt._messages.debug import DebugTable, Position
from smalt._messages.types import (
    dtype,
    flat_axes,
    is_complex,
    is_complex_ref,
    is_dtype,
    is_key,
    is_semaphore_of_copies,
    layout,
    literal,
    memory_space,
    parts,
    physical,
    stored,
    type_of,
)
from smalt._messages.wire import Message, message
