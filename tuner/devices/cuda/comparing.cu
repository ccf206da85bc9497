// One kernel finds, for each block, the largest difference, the largest share of what is allowed, the sum and
// the sum of squares. One sets a flag if two stretches of memory differ in a byte. One adds up the words of a
// stretch: CuPy's own sums take 4 s to compile for each dtype where they are not on disk yet. One hashes an array
// as `tuner.devices.comparing.fingerprint` does with NumPy.
// REAL is the type of the output that is compared with its reference.

// NaN is larger than any number.
__device__ double larger(double a, double b) { return b > a || b != b ? b : a; }
// The first two of four numbers are largest ones, the others are sums.
__device__ double joined(int part, double a, double b) { return part < 2 ? larger(a, b) : a + b; }

extern "C" __global__ void differences(const REAL* output, const double* values, long long count,
                                       double tolerance, double scale, double* found)
{
    __shared__ double of_warps[4 * 32];
    double parts[4] = {0.0, 0.0, 0.0, 0.0};
    const long long step = gridDim.x * (long long)blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += step) {
        const double value = values[i], difference = fabs((double)output[i] - value);
        const double allowed = fmax(tolerance * (scale + fabs(value)), 1e-300);
        parts[0] = larger(parts[0], difference);
        parts[1] = larger(parts[1], difference / allowed);
        parts[2] += difference;
        parts[3] += difference * difference;
    }
    for (int part = 0; part < 4; ++part) {
        for (int lanes = 16; lanes; lanes /= 2)
            parts[part] = joined(part, parts[part], __shfl_xor_sync(0xffffffffu, parts[part], lanes));
        if (threadIdx.x % 32 == 0) of_warps[32 * part + threadIdx.x / 32] = parts[part];
    }
    __syncthreads();
    if (threadIdx.x < 4) {
        double all = 0.0;
        for (int warp = 0; warp < blockDim.x / 32; ++warp)
            all = joined(threadIdx.x, all, of_warps[32 * threadIdx.x + warp]);
        found[4 * blockIdx.x + threadIdx.x] = all;
    }
}

extern "C" __global__ void unequal(const unsigned char* one, const unsigned char* other, long long bytes,
                                   int* flag)
{
    const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const long long step = gridDim.x * (long long)blockDim.x;
    const bool wide = ((unsigned long long)one | (unsigned long long)other) % 16 == 0;
    const long long words = wide ? bytes / 16 : 0;
    bool found = false;
    for (long long i = first; i < words; i += step) {
        const uint4 x = ((const uint4*)one)[i], y = ((const uint4*)other)[i];
        found = found || x.x != y.x || x.y != y.y || x.z != y.z || x.w != y.w;
    }
    for (long long i = 16 * words + first; i < bytes; i += step) found = found || one[i] != other[i];
    if (found) *flag = 1;
}

extern "C" __global__ void sum_of_words(const unsigned char* memory, long long bytes, unsigned long long* total)
{
    const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const long long step = gridDim.x * (long long)blockDim.x;
    const long long words = (unsigned long long)memory % 16 == 0 ? bytes / 16 : 0;
    unsigned long long sum = 0;
    for (long long i = first; i < words; i += step) {
        const uint4 word = ((const uint4*)memory)[i];
        sum += (unsigned long long)word.x + word.y + word.z + word.w;
    }
    for (long long i = 16 * words + first; i < bytes; i += step) sum += memory[i];
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
}

__device__ unsigned long long mixed(unsigned long long x)
{
    x = (x + 1) * 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

extern "C" __global__ void fingerprint(const void* cells, long long count, int bytes,
                                       unsigned long long infinity, unsigned long long* total)
{
    const long long piece = 1 << 15;
    const long long step = gridDim.x * (long long)blockDim.x;
    const unsigned long long magnitude = (1ull << (8 * bytes - 1)) - 1;
    unsigned long long sum = 0;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += step) {
        unsigned long long x = bytes == 1   ? ((const unsigned char*)cells)[i]
                               : bytes == 2 ? ((const unsigned short*)cells)[i]
                               : bytes == 4 ? ((const unsigned int*)cells)[i]
                                            : ((const unsigned long long*)cells)[i];
        if (infinity && (x & magnitude) > infinity) x = infinity + 1;
        sum += x * ((mixed(i % piece) | 1) * (mixed(piece + i / piece) | 1));
    }
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
}
