"""What exports say of tensor maps: a helper that makes one, and the statements of a run that do."""

from __future__ import annotations

from typing import Any

from tuner.declare.launch import TensorMap
from tuner.export.interface import Interface
from tuner.export.symbolic import in_c, in_python

#: ``CUtensorMapDataType`` by our dtypes: its name behind the prefix, and its number.
DATA_TYPES = {
    "uint8": ("UINT8", 0), "int32": ("INT32", 3), "int64": ("INT64", 5), "float16": ("FLOAT16", 6),
    "float32": ("FLOAT32", 7), "float64": ("FLOAT64", 8), "bfloat16": ("BFLOAT16", 9),
}  # fmt: skip
#: ``CUtensorMapSwizzle`` likewise, by bytes.
SWIZZLES = {0: ("NONE", 0), 32: ("32B", 1), 64: ("64B", 2), 128: ("128B", 3)}
#: ``CUtensorMapL2promotion`` by bytes.
PROMOTIONS = {128: 2, 256: 3}

#: The driver's function is found through the runtime, so that nothing more is linked.
C_HELPER = """\
struct Map {
    CUtensorMap made;
    template <typename T> operator T() const {
        static_assert(sizeof(T) == sizeof(CUtensorMap), "a tensor map has 128 bytes");
        T to;
        memcpy(&to, &made, sizeof(to));
        return to;
    }
};

// Describes a dense array for the copy engine. Sizes and box begin with the contiguous dim.
static cudaError_t mapped(Map& map, CUtensorMapDataType type, size_t element, const void* array,
                          const std::vector<cuuint64_t>& sizes, const std::vector<cuuint32_t>& box,
                          CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    const cudaError_t status = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
    const cudaError_t status =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    if (status != cudaSuccess) return status;
    if (found == nullptr) return cudaErrorNotSupported;
    std::vector<cuuint64_t> pitches(1, sizes[0] * element);
    for (size_t i = 1; i + 1 < sizes.size(); ++i) pitches.push_back(pitches.back() * sizes[i]);
    for (size_t i = 0; i + 1 < sizes.size(); ++i)  // rows that begin amid lines of L2
        if (pitches[i] % 128 != 0) promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
    const std::vector<cuuint32_t> ones(sizes.size(), 1);
    using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                                CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill);
    const CUresult made = reinterpret_cast<Encode>(found)(
        &map.made, type, cuuint32_t(sizes.size()), const_cast<void*>(array), sizes.data(), pitches.data(),
        box.data(), ones.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return made == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

"""

PYTHON_HELPER = '''\
def _mapped(array, data_type, box, swizzle, promotion):
    """A tensor map: describes a dense array for the copy engine; a kernel takes its 128 bytes by value."""
    sizes, box = array.shape[::-1], box[::-1]
    pitches = [array.itemsize]
    for size in sizes[:-1]:
        pitches.append(pitches[-1] * size)
    rank = len(sizes)
    if any(pitch % 128 for pitch in pitches[1:]):  # rows that begin amid lines of L2
        promotion = 2
    memory = numpy.zeros(192, dtype="uint8")
    first = -memory.ctypes.data % 64
    made = memory[first : first + 128]
    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.c_void_p(made.ctypes.data), data_type, ctypes.c_uint32(rank), ctypes.c_void_p(array.data.ptr),
        (ctypes.c_uint64 * rank)(*sizes), (ctypes.c_uint64 * rank)(*pitches[1:]),
        (ctypes.c_uint32 * rank)(*box), (ctypes.c_uint32 * rank)(*([1] * rank)), 0, swizzle, promotion, 0,
    )
    if status:
        raise RuntimeError(f"cuTensorMapEncodeTiled failed with status {status}")
    return made.view("V128")


'''


def _shapes(face: Interface) -> dict[str, tuple[Any, ...]]:
    """The tensors' shapes as the kernel takes them."""
    padded = {each.tensor: each.shape for each in (face.launch.padded if face.launch else ())}
    return {each.tensor.name: each.tensor.shape for each in face.arguments} | padded


def in_cuda(face: Interface, arrays: dict[str, str]) -> list[str]:
    """Statements that make a launch's maps.

    Args:
        face: What the kernel takes.
        arrays: Names of the arrays in the text, by tensor.
    """
    lines = []
    for each in face.launch.maps if face.launch else ():
        tensor = next(argument.tensor for argument in face.arguments if argument.tensor.name == each.tensor)
        sizes = ", ".join(f"cuuint64_t({in_c(size)})" for size in _shapes(face)[each.tensor][::-1])
        box = ", ".join(f"{in_c(size)}" for size in each.box[::-1])
        kind, swizzle = DATA_TYPES[tensor.dtype][0], SWIZZLES[each.swizzle][0]
        array = arrays[each.tensor]
        lines += [
            f"    Map {each.name};",
            "    if (status == cudaSuccess)",
            f"        status = mapped({each.name}, CU_TENSOR_MAP_DATA_TYPE_{kind}, sizeof(*{array}), {array}, "
            f"{{{sizes}}},",
            f"                        {{{box}}}, CU_TENSOR_MAP_SWIZZLE_{swizzle}, "
            f"CU_TENSOR_MAP_L2_PROMOTION_L2_{each.promotion}B);",
        ]
    return lines


def in_module(face: Interface, arrays: dict[str, str]) -> list[str]:
    """The same in an exported Python module."""
    found = []
    for each in face.launch.maps if face.launch else ():
        tensor = next(argument.tensor for argument in face.arguments if argument.tensor.name == each.tensor)
        bytes_of = f"{SWIZZLES[each.swizzle][1]}, {PROMOTIONS[each.promotion]}"
        given = f"{DATA_TYPES[tensor.dtype][1]}, {_box(each)}, {bytes_of}"
        found.append(f"    _{each.name} = _mapped({arrays[each.tensor]}, {given})")
    return found


def _box(of: TensorMap) -> str:
    return f"({', '.join(in_python(size) for size in of.box)},)"
