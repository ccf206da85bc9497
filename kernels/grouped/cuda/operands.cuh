// gemm's texts for wgmma take products as they are, C's tile of BN columns: comes before operand_layout.cuh.
#define SWAP 0
#define WIDTH BN
#define PROMOTE 1
#ifndef EIGHT
#define EIGHT 0
#define SCALES 0
#endif
