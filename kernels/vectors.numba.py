"""Vectors of the CPU as values in Numba code: one register, or as many as the lanes need.

    v = load(p, 16)                     16 elements from a pointer on
    w = broadcast(x, 16)                the same value in every lane
    total = multiply_add(v, w, total)   v * w + total, fused if the CPU can
    store(p, total)

If the compiler vectorises a loop by itself, it may keep the sums in memory. A kernel that must keep a tile of
sums in registers uses these values. The number of lanes is known at compile time. LLVM makes AVX-512, AVX2, SSE
or NEON instructions of the same source, and splits a vector that is wider than the CPU's.

Imports only NumPy and Numba. This text needs no constants in front of it,
and is itself put in front of kernels that use it.
"""

# ruff: noqa: ANN001, ANN201, ANN202, ANN204
from numba import types
from numba.core import cgutils
from numba.core.cgutils import ir
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, register_model

INDEX = ir.IntType(32)


class Vector(types.Type):
    """A number of lanes of float32 or float64."""

    def __init__(self, dtype, lanes):
        self.dtype, self.lanes = dtype, lanes
        super().__init__(name=f"Vector({dtype} x {lanes})")


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    """A vector is a value of LLVM's own vector type."""

    def __init__(self, manager, vector):
        element = manager.lookup(vector.dtype).get_value_type()
        super().__init__(manager, vector, ir.VectorType(element, vector.lanes))


def lanes_of(literal):
    """The number behind the type of a constant.

    Raises:
        TypingError: It varies; only names of the module that hold a number, and numbers, are constants.
    """
    if not isinstance(literal, types.IntegerLiteral):
        raise TypingError(
            f"lanes, rows and the like are constants, got {literal}; give it a name of the module"
        )
    return literal.literal_value


# Each operation in LLVM. Kernels that unroll over many vectors use these directly.


def _element_bytes(llvm_element):
    return 4 if isinstance(llvm_element, ir.FloatType) else 8


def emit_constant(llvm_vector, value):
    """A vector of one value, or of a list of values."""
    values = list(value) if isinstance(value, (list, range)) else [value] * llvm_vector.count
    return ir.Constant(llvm_vector, values)


def emit_load(builder, pointer, llvm_vector):
    """Loads from an address that need only be aligned to an element."""
    alignment = _element_bytes(llvm_vector.element)
    return builder.load(builder.bitcast(pointer, llvm_vector.as_pointer()), align=alignment)


def emit_store(builder, value, pointer):
    """Stores to an address that need only be aligned to an element."""
    alignment = _element_bytes(value.type.element)
    return builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=alignment)


def emit_broadcast(builder, scalar, llvm_vector):
    """Puts a scalar into every lane."""
    unset = ir.Constant(llvm_vector, ir.Undefined)
    first = builder.insert_element(unset, scalar, INDEX(0))
    order = emit_constant(ir.VectorType(INDEX, llvm_vector.count), 0)
    return builder.shuffle_vector(first, unset, order)


def emit_shuffle(builder, left, right, order):
    """Lanes picked by number from left, then right."""
    return builder.shuffle_vector(left, right, emit_constant(ir.VectorType(INDEX, len(order)), order))


def emit_multiply_add(builder, x, y, z):
    """Computes x * y + z in one instruction if the CPU has it, else in two."""
    kind = x.type
    name = f"llvm.fmuladd.v{kind.count}{'f32' if isinstance(kind.element, ir.FloatType) else 'f64'}"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
    return builder.call(function, [x, y, z])


def emit_total(builder, vector):
    """The sum of all lanes, halves added to halves."""
    while vector.type.count > 1:
        half = vector.type.count // 2
        low, high = (emit_shuffle(builder, vector, vector, range(at, at + half)) for at in (0, half))
        vector = builder.fadd(low, high)
    return builder.extract_element(vector, INDEX(0))


def emit_mask(builder, count, lanes):
    """True in the first `count` lanes."""
    numbers = ir.VectorType(count.type, lanes)
    return builder.icmp_signed(
        "<", emit_constant(numbers, range(lanes)), emit_broadcast(builder, count, numbers)
    )


def _masked(builder, action, kind, pointer):
    lanes, real = kind.count, "f32" if isinstance(kind.element, ir.FloatType) else "f64"
    name = f"llvm.masked.{action}.v{lanes}{real}.p0"
    address, mask = kind.as_pointer(), ir.VectorType(ir.IntType(1), lanes)
    if action == "load":
        signature = ir.FunctionType(kind, [address, INDEX, mask, kind])
    else:
        signature = ir.FunctionType(ir.VoidType(), [kind, address, INDEX, mask])
    function = cgutils.get_or_insert_function(builder.module, signature, name)
    return function, builder.bitcast(pointer, address), INDEX(4 if real == "f32" else 8)


def emit_load_first(builder, pointer, count, llvm_vector):
    """Loads the first `count` lanes; the others are 0 and their memory is not touched."""
    function, address, alignment = _masked(builder, "load", llvm_vector, pointer)
    mask = emit_mask(builder, count, llvm_vector.count)
    return builder.call(function, [address, alignment, mask, emit_constant(llvm_vector, 0.0)])


def emit_store_first(builder, value, pointer, count):
    """Stores the first `count` lanes and touches no other memory."""
    function, address, alignment = _masked(builder, "store", value.type, pointer)
    builder.call(function, [value, address, alignment, emit_mask(builder, count, value.type.count)])


def emit_prefetch(builder, pointer, elements):
    """Prefetches the lines of 64 bytes that hold a number of elements into the nearest cache, for reading."""
    per_line = 64 // _element_bytes(pointer.type.pointee)
    byte = ir.IntType(8).as_pointer()
    signature = ir.FunctionType(ir.VoidType(), [byte, INDEX, INDEX, INDEX])
    function = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0")
    for start in range(0, elements, per_line):
        line = builder.bitcast(builder.gep(pointer, [INDEX(start)]), byte)
        builder.call(function, [line, INDEX(0), INDEX(3), INDEX(1)])


# The operations themselves.


@intrinsic
def pointer(context, array, index):
    """Address of element `index` of a dense array, counted in memory order."""

    def generate(target, builder, signature, args):
        data = target.make_array(signature.args[0])(target, builder, args[0]).data
        return builder.gep(data, [args[1]])

    return types.CPointer(array.dtype)(array, types.intp), generate


@intrinsic
def hold(context, array):
    """Does nothing, but keeps an array until this call: an address alone does not keep its memory."""

    def generate(target, builder, signature, args):
        return target.get_dummy_value()

    return types.void(array), generate


@intrinsic
def forward(context, address, elements):
    """The address a number of elements further on."""
    return address(address, types.intp), lambda target, builder, signature, args: builder.gep(
        args[0], [args[1]]
    )


@intrinsic(prefer_literal=True)
def room(context, like, elements):
    """Memory for a number of elements of a type, until the function returns."""

    def generate(target, builder, signature, args):
        element = target.get_value_type(like.dtype)
        return cgutils.alloca_once(builder, element, INDEX(lanes_of(elements)))

    return like(like, elements), generate


@intrinsic(prefer_literal=True)
def load(context, address, lanes):
    """A number of elements from an address on."""
    vector = Vector(address.dtype, lanes_of(lanes))

    def generate(target, builder, signature, args):
        return emit_load(builder, args[0], target.get_value_type(signature.return_type))

    return vector(address, lanes), generate


@intrinsic(prefer_literal=True)
def load_first(context, address, count, lanes):
    """The first `count` elements; the other lanes are 0 and their memory is not read."""
    vector = Vector(address.dtype, lanes_of(lanes))

    def generate(target, builder, signature, args):
        return emit_load_first(builder, args[0], args[1], target.get_value_type(signature.return_type))

    return vector(address, types.intp, lanes), generate


@intrinsic
def store(context, address, vector):
    """Writes every lane."""

    def generate(target, builder, signature, args):
        emit_store(builder, args[1], args[0])
        return target.get_dummy_value()

    return types.void(address, vector), generate


@intrinsic
def store_first(context, address, vector, count):
    """Writes the first `count` lanes."""

    def generate(target, builder, signature, args):
        emit_store_first(builder, args[1], args[0], args[2])
        return target.get_dummy_value()

    return types.void(address, vector, types.intp), generate


@intrinsic(prefer_literal=True)
def broadcast(context, value, lanes):
    """The same value in every lane."""
    vector = Vector(types.unliteral(value), lanes_of(lanes))

    def generate(target, builder, signature, args):
        return emit_broadcast(builder, args[0], target.get_value_type(signature.return_type))

    return vector(vector.dtype, lanes), generate


def _binary(context, vector, name):
    def generate(target, builder, signature, args):
        return getattr(builder, name)(*args)

    return vector(vector, vector), generate


@intrinsic
def add(context, left, right):
    """Adds lane by lane."""
    return _binary(context, left, "fadd")


@intrinsic
def multiply(context, left, right):
    """Multiplies lane by lane."""
    return _binary(context, left, "fmul")


@intrinsic
def multiply_add(context, x, y, z):
    """Computes x * y + z lane by lane, rounded once if the CPU can."""
    return x(x, x, x), lambda target, builder, signature, args: emit_multiply_add(builder, *args)


@intrinsic
def total(context, vector):
    """The sum of all lanes, halves added to halves (lanes are a power of two)."""
    return vector.dtype(vector), lambda target, builder, signature, args: emit_total(builder, *args)


@intrinsic(prefer_literal=True)
def prefetch(context, address, elements):
    """Prefetches the cache lines that hold a number of elements from an address on; any address is safe."""

    def generate(target, builder, signature, args):
        emit_prefetch(builder, args[0], lanes_of(elements))
        return target.get_dummy_value()

    return types.void(address, elements), generate
