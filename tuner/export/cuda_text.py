"""Templates of the exported .cu file; names after a dollar are filled in by `tuner.export.cuda_source`."""

from __future__ import annotations

from string import Template

from tuner.declare.launch import COPY_BLOCKS_DOWN, COPY_ROWS, COPY_ROWS_TEMPLATE, COPY_THREADS

WHOLE = Template("""\
$header
$includes

// ---------------------------------------------------------------- the config, then the kernel

$kernel

// ---------------------------------------------------------------- host

[[maybe_unused]] static inline long long ceil_div(long long numerator, long long denominator) {
    return (numerator + denominator - 1) / denominator;
}

$helpers// Queues one run on a stream. Arrays lie on the device, dense and row-major, at multiples of 16 bytes:
$arrays
// Returns cudaErrorInvalidValue for dims that this config is not made for, else what the launch returns.
cudaError_t launch_$verb($parameters, cudaStream_t stream = 0) {
$checks
$geometry$launch
}
""")

GEOMETRY = Template("""\
    const dim3 grid($grid), block($block);
    const long long shared_bytes = $shared_bytes;
""")

#: One launch, where nothing else belongs to a run.
LAUNCH = Template("""\
    ::$entry<<<grid, block, shared_bytes, stream>>>($passed);
    return cudaGetLastError();""")

#: Launches for the pieces of an array that passes through constant memory.
PIECES = Template("""\
    // $array passes through constant memory in pieces. There is one such memory: runs on several streams of a
    // device at once would overwrite each other's pieces.
    const long long size = $size;
    cudaError_t status = cudaSuccess;
    for (long long first = 0; first < size && status == cudaSuccess; first += $elements) {
        const long long count = size - first < $elements ? size - first : $elements;
        status = cudaMemcpyToSymbolAsync(
            $symbol, $array + first, count * sizeof($type), 0, cudaMemcpyDeviceToDevice, stream);
        if (status != cudaSuccess) break;
        ::$entry<<<grid, block, shared_bytes, stream>>>($passed, static_cast<int>(first));
        status = cudaGetLastError();
    }
    return status;""")

#: A launch that needs memory beside the arrays it is given.
WITH_MEMORY = Template("""\
    cudaError_t status = cudaSuccess;
$copies
$launches
$results
$freeing
    return status;""")

#: A launch of a run that takes memory or is several launches.
NEXT = Template("""\
    if (status == cudaSuccess) {
        ::$entry<<<grid, block, shared_bytes, stream>>>($passed);
        status = cudaGetLastError();
    }""")

#: The same with a geometry of its own.
STEP = Template("""\
    if (status == cudaSuccess) {
        const dim3 grid($grid), block($block);
        const long long shared_bytes = $shared_bytes;
$asking        if (status == cudaSuccess) {
$launched
        }
    }""")

#: How a step is launched, and how one that may start while the launch before it ends.
ORDINARY = Template("""\
            ::$entry<<<grid, block, shared_bytes, stream>>>($passed);
            status = cudaGetLastError();""")
EARLY = Template("""\
            // May start while the launch before it ends (programmatic dependent launch): it waits itself.
            cudaLaunchAttribute early = {};
            early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
            early.val.programmaticStreamSerializationAllowed = 1;
            cudaLaunchConfig_t config = {};
            config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared_bytes;
            config.stream = stream, config.attrs = &early, config.numAttrs = 1;
            status = cudaLaunchKernelEx(&config, ::$entry, $passed);""")

#: An address as an argument of any pointer type: the types are the functions' own affair.
POINTER = """\
struct Pointer {
    const void* address;
    template <typename T> operator T*() const { return static_cast<T*>(const_cast<void*>(address)); }
};

"""

#: What a run's steps count in, and how it is read.
COUNTER = Template("""\
// Runs of this program on the present device that the plain kernel had to compute; waits for those queued.
__device__ unsigned counted_$verb;
cudaError_t fallbacks_$verb(unsigned& count) {
    return cudaMemcpyFromSymbol(&count, counted_$verb, sizeof count);
}
static Pointer counter_$verb() {
    void* address = nullptr;
    return cudaGetSymbolAddress(&address, counted_$verb) == cudaSuccess ? Pointer{address} : Pointer{nullptr};
}

""")

PADDED_COPY = f"""\
{COPY_ROWS_TEMPLATE}
template <typename T>
static cudaError_t copied(T* to, long long to_row, const T* from, long long from_row, long long rows,
                          long long columns, cudaStream_t stream) {{
    const long long down = ceil_div(rows, {COPY_ROWS}), shared_bytes = 0;
    const dim3 grid(unsigned(ceil_div(columns, {COPY_THREADS})),
                    unsigned(down < {COPY_BLOCKS_DOWN} ? down : {COPY_BLOCKS_DOWN})), block({COPY_THREADS});
    ::copy_rows<<<grid, block, shared_bytes, stream>>>(to, to_row, from, from_row, rows, columns);
    return cudaGetLastError();
}}

// A larger array whose first rows and columns are those of `array`, zeros beyond; freed by cudaFreeAsync.
template <typename T>
static cudaError_t padded(T*& larger, const T* array, long long rows, long long columns, long long larger_rows,
                          long long larger_columns, cudaStream_t stream) {{
    const size_t bytes = larger_rows * larger_columns * sizeof(T);
    cudaError_t status = cudaMallocAsync(&larger, bytes, stream);
    if (status == cudaSuccess) status = cudaMemsetAsync(larger, 0, bytes, stream);
    if (status != cudaSuccess || array == nullptr) return status;
    return copied(larger, larger_columns, array, columns, rows, columns, stream);
}}

"""

MAIN = Template("""
// ---------------------------------------------------------------- check and timing

#ifdef TILE_TUNER_MAIN

static int checks = 0;

static void must(cudaError_t status, const char* what) {
    if (status != cudaSuccess) {
        fprintf(stderr, "%s: %s\\n", what, cudaGetErrorString(status));
        exit(3);
    }
}

// The same pseudo-random numbers wherever they are computed.
static unsigned mixed(long long index, unsigned seed) {
    unsigned x = unsigned(index) * 2654435761u + seed * 40503u;
    x = (x ^ (x >> 16)) * 0x45d9f3bu;
    return (x ^ (x >> 16)) >> 20;
}

template <typename T>
static std::vector<T> drawn(long long size, unsigned seed) {
    std::vector<T> values(size);
    for (long long index = 0; index < size; ++index) {
        const unsigned x = mixed(index, seed);
        if (std::is_integral<T>::value) {
            values[index] = T(double(x % 17) - (T(-1) < T(1) ? 8 : 0));
        } else {
            values[index] = T((double(x) - 2048.0) / 2048.0);
        }
    }
    return values;
}

template <typename T>
static T* on_device(const std::vector<T>& values) {
    T* copy = nullptr;
    must(cudaMalloc(&copy, values.size() * sizeof(T)), "allocating");
    must(cudaMemcpy(copy, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "copying");
    return copy;
}

$functions
// One run for these dims on poisoned output, compared with float64; then $launches launches in a row, timed
// with the caches as they are. True where the result is right.
static bool run($dims, bool timed) {
$prepare
    bool right = true;
$compare
    if (timed) {
        cudaEvent_t begin, end;
        must(cudaEventCreate(&begin), "event");
        must(cudaEventCreate(&end), "event");
        must(cudaEventRecord(begin), "event");
        for (int launch = 0; launch < $launches; ++launch) {
            must(launch_$verb($on_device), "launch");
        }
        must(cudaEventRecord(end), "event");
        must(cudaEventSynchronize(end), "run");
        float milliseconds = 0;
        must(cudaEventElapsedTime(&milliseconds, begin, end), "event");
        const double seconds = milliseconds * 1e-3 / $launches;
        printf("%.6g s a launch, %.4g TFLOPS\\n", seconds, double($flops) / seconds / 1e12);
    }
$free
    return right;
}

int main(int count, char** words) {
    if (count != 1 && count != $arity) {
        fprintf(stderr, "usage: %s [$usage]\\n", words[0]);
        return 2;
    }
    bool right = true;
$checked
$chosen
    right = run($names, true) && right;
    puts(!right ? "FAILED" : checks > 0 ? "PASSED" : "NOT CHECKED");
    return right && checks > 0 ? 0 : 1;
}

#endif  // TILE_TUNER_MAIN
""")

REFERENCE = Template("""\
// One element of $name in float64, as the operation declares it.
static double reference_$name($inputs, $dims, long long index) {
    (void)index;
$body
}

// Largest error over what is allowed, among at most 65536 elements spread over all of $name.
static double worst_of_$name($inputs, const std::vector<$type>& $name, $dims) {
    const long long size = $size, count = size < 65536 ? size : 65536;
    std::vector<long long> indices(count);
    std::vector<double> expected(count);
    double squares = 0;
    for (long long i = 0; i < count; ++i) {
        indices[i] = i * size / count + i * 7919 % (size / count);
        expected[i] = reference_$name($input_names, $names, indices[i]);
        squares += expected[i] * expected[i] / count;
    }
    double worst = 0;
    for (long long i = 0; i < count; ++i) {
        const double error = fabs(double($name[indices[i]]) - expected[i]);
        const double allowed = $tolerance * (sqrt(squares) + fabs(expected[i]));
        const double ratio = error == 0 ? 0 : error / allowed;
        worst = ratio <= worst ? worst : ratio == ratio ? ratio : INFINITY;
    }
    return worst;
}
""")

FINGERPRINT = Template("""\
// Largest error over what is allowed, of sums that every element of $name goes into with a sign. The
// float64 reference's sums were computed at export, for a few dims; for others -1: not checked.
static double worst_of_$name(const std::vector<$type>& $name, $dims) {
    struct Known {
        std::vector<long long> dims;
        double sums[$sums], allowed[$sums];
    };
    static const std::vector<Known> known = {
$known
    };
    for (const Known& each : known) {
        if (each.dims != std::vector<long long>{$names}) continue;
        double sums[$sums] = {}, worst = 0;
        for (size_t index = 0; index < $name.size(); ++index) {
            sums[index % $sums] += double($name[index]) * (mixed(index, 0) % 2 ? -1.0 : 1.0);
        }
        for (int i = 0; i < $sums; ++i) {
            const double error = fabs(sums[i] - each.sums[i]);
            const double ratio = error == 0 ? 0 : error / each.allowed[i];
            worst = ratio <= worst ? worst : ratio == ratio ? ratio : INFINITY;
        }
        return worst;
    }
    return -1;
}
""")
