// C = op(A) op(B) with an epilogue, by one call of cublasLtMatmul with the algorithm that the config names.
//
// cuBLASLt is column-major: a row-major C is its C transposed, so B comes first and the letters swap. Sums are in
// float32, never in TF32 or less. PROPOSAL is the place, from 1, among what cuBLASLt's heuristic proposes, which is
// another algorithm in another version of cuBLAS; where it is 0, the others name the algorithm.
// Operands of 8 bits have scales (SCALES: one each; 2: for rows and columns; 3: for blocks) behind them, and a RESULT of another type, and types of their own.
#include <cublasLt.h>

#include <map>
#include <mutex>
#include <tuple>

#ifndef SCALES
#define SCALES 0
#define RESULT DTYPE
#define A_TYPE DTYPE
#define B_TYPE DTYPE
#define FAST 0
#endif

namespace by_cublaslt {

constexpr size_t WORKSPACE_BYTES = 32 << 20;  // as large as cuBLAS's own on Hopper
constexpr int PROPOSALS = 8;

// What a shape needs on a device: kept, because to ask for proposals takes longer than many a product.
struct Plan {
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t description = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
    cublasLtMatmulHeuristicResult_t chosen = {};
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    void must(cublasStatus_t got) {
        if (status == CUBLAS_STATUS_SUCCESS) status = got;
    }
    template <typename T>
    void described(cublasLtMatmulDescAttributes_t attribute, T value) {
        must(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value));
    }
    template <typename T>
    void configured(cublasLtMatmulAlgoConfigAttributes_t attribute, T value) {
        must(cublasLtMatmulAlgoConfigSetAttribute(&chosen.algo, attribute, &value, sizeof value));
    }

    void scaled_by(const void* of_a, const void* of_b) {
        described(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_b);
        described(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_a);
    }

    void named() {
        constexpr cudaDataType_t type = cudaDataType_t(DTYPE);
        must(cublasLtMatmulAlgoInit(handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, type, type, type, type, ALGORITHM,
                                    &chosen.algo));
        configured(CUBLASLT_ALGO_CONFIG_TILE_ID, uint32_t(TILE));
        configured(CUBLASLT_ALGO_CONFIG_STAGES_ID, uint32_t(STAGES));
        configured(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, uint16_t(CLUSTER));
        configured(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, uint32_t(CUSTOM));
        configured(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, int32_t(SPLIT_K));
        configured(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, uint32_t(REDUCTION));
        configured(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, uint32_t(SWIZZLE));
        cublasLtMatmulHeuristicResult_t checked = {};
        must(cublasLtMatmulAlgoCheck(handle, description, b, a, c, c, &chosen.algo, &checked));
        chosen.workspaceSize = checked.workspaceSize;
        if (chosen.workspaceSize > WORKSPACE_BYTES) must(CUBLAS_STATUS_NOT_SUPPORTED);
    }

    void proposed() {
        cublasLtMatmulPreference_t preference = nullptr;
        must(cublasLtMatmulPreferenceCreate(&preference));
        must(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                  &WORKSPACE_BYTES, sizeof WORKSPACE_BYTES));
        const uint32_t mask = DTYPE == CUDA_R_32F ? CUBLASLT_REDUCTION_SCHEME_MASK
                                                  : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        must(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &mask,
                                                  sizeof mask));
        cublasLtMatmulHeuristicResult_t results[PROPOSALS] = {};
        int count = 0;
        must(cublasLtMatmulAlgoGetHeuristic(handle, description, b, a, c, c, preference, PROPOSALS, results,
                                            &count));
        constexpr int place = PROPOSAL > 0 ? PROPOSAL - 1 : 0;
        if (count <= place) must(CUBLAS_STATUS_NOT_SUPPORTED);
        chosen = results[place];
        must(chosen.state);
        if (preference != nullptr) cublasLtMatmulPreferenceDestroy(preference);
    }

    Plan(long long m, long long n, long long k) {
        constexpr cudaDataType_t of_a = cudaDataType_t(A_TYPE), of_b = cudaDataType_t(B_TYPE);
        must(cublasLtCreate(&handle));
        must(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        described(CUBLASLT_MATMUL_DESC_TRANSA, int32_t(B_TRANSPOSED ? CUBLAS_OP_T : CUBLAS_OP_N));
        described(CUBLASLT_MATMUL_DESC_TRANSB, int32_t(A_TRANSPOSED ? CUBLAS_OP_T : CUBLAS_OP_N));
        constexpr int biased = EPILOGUE_BIAS ? 4 : 0;
        described(CUBLASLT_MATMUL_DESC_EPILOGUE,
                  int32_t(EPILOGUE_ACTIVATION == 1   ? 2 + biased
                          : EPILOGUE_ACTIVATION == 3 ? 32 + biased
                          : biased                   ? biased
                                                     : 1));
        if (EPILOGUE_BIAS) described(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t(RESULT));
        if (FAST) described(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(1));
#if SCALES > 1  // of B, which comes first, and of A: OUTER_VEC_32F, or BLK128x128_32F and VEC128_32F (cuBLAS 12.9)
        described(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, int32_t(SCALES == 2 ? 3 : 5));
        described(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, int32_t(SCALES == 2 ? 3 : 4));
#endif
        if (SCALES) scaled_by((const void*)4096, (const void*)4096);  // aligned: all that proposals depend on
        must(cublasLtMatrixLayoutCreate(&b, of_b, B_TRANSPOSED ? k : n, B_TRANSPOSED ? n : k, B_TRANSPOSED ? k : n));
        must(cublasLtMatrixLayoutCreate(&a, of_a, A_TRANSPOSED ? m : k, A_TRANSPOSED ? k : m, A_TRANSPOSED ? m : k));
        must(cublasLtMatrixLayoutCreate(&c, cudaDataType_t(RESULT), n, m, n));
        if (PROPOSAL) proposed();
        else named();
    }
};

// Queues one run. Threads may call it at the same time; plans stay until the program ends.
static cudaError_t run(const void* a, const void* b, const void* scale_a, const void* scale_b, const void* added,
                       const void* bias, void* c, long long m, long long n, long long k, float alpha, float beta,
                       cudaStream_t stream) {
    static std::mutex mutex;
    static std::map<std::tuple<int, long long, long long, long long>, Plan> plans;
    int device = 0;
    cudaError_t failed = cudaGetDevice(&device);
    if (failed != cudaSuccess) return failed;
    const std::lock_guard<std::mutex> lock(mutex);
    Plan& plan = plans.try_emplace({device, m, n, k}, m, n, k).first->second;
    if (plan.status != CUBLAS_STATUS_SUCCESS) return cudaErrorNotSupported;
    void* workspace = nullptr;
    if (plan.chosen.workspaceSize > 0) failed = cudaMallocAsync(&workspace, plan.chosen.workspaceSize, stream);
    if (failed != cudaSuccess) return failed;
    if (EPILOGUE_BIAS) plan.described(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (SCALES) plan.scaled_by(scale_a, scale_b);
    const cublasStatus_t status = cublasLtMatmul(
        plan.handle, plan.description, &alpha, b, plan.b, a, plan.a, &beta, added, plan.c, c, plan.c,
        &plan.chosen.algo, workspace, plan.chosen.workspaceSize, stream);
    if (workspace != nullptr) failed = cudaFreeAsync(workspace, stream);
    return status == CUBLAS_STATUS_SUCCESS ? failed : cudaErrorUnknown;
}

}  // namespace by_cublaslt

static cudaError_t gemm(const void* a, const void* b,
#if SCALES
                        const void* scale_a, const void* scale_b,
#endif
#if EPILOGUE_BETA
                        const void* c_in,
#endif
#if EPILOGUE_BIAS
                        const void* bias,
#endif
#if EPILOGUE_RESIDUAL
                        const void* residual,
#endif
                        void* c, long long m, long long n, long long k,
#if EPILOGUE_ALPHA
                        float alpha,
#endif
#if EPILOGUE_BETA
                        float beta,
#endif
                        cudaStream_t stream) {
#if !EPILOGUE_ALPHA
    const float alpha = 1;
#endif
#if !SCALES
    const void *scale_a = nullptr, *scale_b = nullptr;
#endif
#if !EPILOGUE_BIAS
    const void* bias = nullptr;
#endif
#if EPILOGUE_BETA
    const void* added = c_in;
#elif EPILOGUE_RESIDUAL
    const void* added = residual;
    const float beta = 1;
#else
    const void* added = c;
    const float beta = 0;
#endif
    return by_cublaslt::run(a, b, scale_a, scale_b, added, bias, c, m, n, k, alpha, beta, stream);
}
