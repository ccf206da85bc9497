// Finishes C in place; behind half.cuh and epilogue.cuh, of which it is made.
extern "C" __global__ void finish(EPILOGUE_STORED* c, EPILOGUE_OPERANDS long long count, int n)
{
    const long long step = gridDim.x * (long long)blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += step) {
        const Epilogue epilogue = EPILOGUE_GIVEN;
        const float x = epilogue(epilogue_value(c[i]), (unsigned)(i / n), (unsigned)(i % n), n);
#ifdef SCALAR
        c[i] = x;
#else
        c[i] = rounded(x);
#endif
    }
}
