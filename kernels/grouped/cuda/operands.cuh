// gemm's texts for wgmma take the product of a group as it is, C's tile of BN columns: comes before operand_layout.cuh.
#define SWAP 0
#define WIDTH BN
