// A lane's place among DOWN x 32 / DOWN lanes. Bits of its number go along and down in turn: lanes that differ in bit 0
// have the same `down` and lanes that differ in bit 1 the same `along`, which lets the hardware serve half a warp's
// 128-bit reads from shared memory at once.
template <int DOWN>
__device__ __forceinline__ void split_lane(int lane, int& down, int& along)
{
    down = along = 0;
    int weight_down = 1, weight_along = 1;
#pragma unroll
    for (int bit = 0; bit < 5; ++bit) {
        const int value = lane >> bit & 1;
        if (weight_along == 32 / DOWN || (bit % 2 == 1 && weight_down < DOWN)) {
            down += value * weight_down;
            weight_down *= 2;
        } else {
            along += value * weight_along;
            weight_along *= 2;
        }
    }
}


