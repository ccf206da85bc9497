// Which rows a tile has: each warp finds the tile's group from the offsets on the device, no host counts tiles.
//
// Tiles of HEIGHT rows have numbers: those of group g begin at offsets[g - 1] / HEIGHT + g. A group never has more tiles than there
// are numbers up to the next group's, so the offsets need not be summed up: a search among them finds the last group that begins at
// a number or before, 32 at a time. At most one number of each group has no rows. Offsets that descend give wrong results, but no
// row outside of A.

struct Rows {
    int group, first, end;  // none where end <= first
};

__device__ __forceinline__ int begin_of(const int* __restrict__ offsets, int group, int rows)
{
    return group ? min(max(offsets[group - 1], 0), rows) : 0;
}

// All threads of a warp call it, with the same number.
template <int HEIGHT>
__device__ __forceinline__ Rows rows_of_tile(const int* __restrict__ offsets, int groups, int rows, int number)
{
    int group = 0, count = groups;
    while (count > 1) {
        const int step = (count + 31) / 32, at = threadIdx.x % 32 * step, asked = min(group + at, groups - 1);
        const bool begins = at < count && begin_of(offsets, asked, rows) / HEIGHT + asked <= number;
        const int before = max(__popc(__ballot_sync(0xffffffffu, begins)) - 1, 0) * step;
        group += before, count = min(step, count - before);
    }
    const int begin = begin_of(offsets, group, rows), end = begin_of(offsets, group + 1, rows);
    return {group, begin + max(number - begin / HEIGHT - group, 0) * HEIGHT, end};
}
