// Work that blocks share: which piece of the product a block computes, and how the sums of blocks that share a tile of C
// are added up.
//
// Comes after copies.cuh, lanes.cuh and tiles.cuh. Without SPLIT_K or BLOCKS a block has a tile of its own. With SPLIT_K
// the k of a tile is cut into SPLIT_K parts, with a block for each. With BLOCKS, BLOCKS blocks stay for the whole
// product (stream-K: Osama et al., 2023).
//
// Adding   Every block writes its sums to the workspace. If the last block to arrive added them all up, it alone would
//          read SPLIT_K tiles while the device waits. So the peers stay, and each adds up some packs of all peers. No
//          block waits for a peer that has not started, which might need its place, nor while it has other work: it
//          leaves if a peer is missing, and peers that arrive later do its share.
//          Sums are always added in the order of k, whichever block adds them, so that results never differ.

constexpr unsigned STAYING = BLOCKS > 0 ? BLOCKS : 1;
constexpr int PACKS = TM * TN / GROUPED;  // of a thread's sums
constexpr int SHARES = BLOCKS > 0 ? 8 : SPLIT_K;  // in which the packs of a tile are added up
constexpr int PACKS_AT_ONCE = SHARES < PACKS ? PACKS / SHARES : 1;
static_assert(PACKS % PACKS_AT_ONCE == 0, "packs are shared out evenly");

// Counts the peers of a tile; all zero between launches.
struct TileCounters {
    unsigned started, finished, next, gone;  // next: the pack that is to be added up next
};

// The pieces of the product that a block computes: some steps of k of a tile of C, which other blocks may share.
struct Work {
    unsigned tiles, per_tile;      // tiles of C; tiles of k, BK deep, of each
    unsigned shared_units, at, end, whole;  // only where blocks stay: units are tiles of k
    unsigned tile, first, count;   // the piece at hand: tiles `first` to `first + count` of the k of `tile`
    unsigned peers, place;         // blocks that share the tile, and which of them this one is
    bool begun, left;              // left: there is a piece at hand

    static __device__ unsigned begin_of(unsigned block, unsigned units) {
        return (unsigned)((unsigned long long)block * units / STAYING);
    }
    static __device__ unsigned block_of(unsigned unit, unsigned units) {
        return (unsigned)(((unit + 1ull) * STAYING - 1) / units);
    }

    __device__ void start(unsigned m, unsigned n, unsigned depth) {
        tiles = ((m + BM - 1) / BM) * ((n + BN - 1) / BN);
        per_tile = (depth - 1) / BK + 1;
        begun = false;
        if constexpr (BLOCKS > 0) {
            const unsigned over = tiles % STAYING;
            const unsigned shared_tiles = over == 0 || tiles < STAYING ? over : over + STAYING;
            shared_units = shared_tiles * per_tile;
            at = begin_of(blockIdx.x, shared_units);
            end = begin_of(blockIdx.x + 1, shared_units);
            whole = shared_tiles + blockIdx.x;
        }
    }

    // Goes to the next piece.
    __device__ void next() {
        peers = 1;
        left = true;
        if constexpr (BLOCKS > 0) {
            if (at < end) {
                tile = at / per_tile;
                first = at % per_tile;
                count = min(per_tile - first, end - at);
                const unsigned leader = block_of(tile * per_tile, shared_units);
                peers = block_of((tile + 1) * per_tile - 1, shared_units) - leader + 1;
                place = blockIdx.x - leader;
                at += count;
                return;
            }
            first = 0;
            count = per_tile;
            tile = whole;
            whole += STAYING;
            left = tile < tiles;
        } else {
            left = !begun;
            begun = true;
            tile = blockIdx.x;
            place = blockIdx.y;
            peers = SPLIT_K;
            first = place * per_tile / SPLIT_K;
            count = (place + 1) * per_tile / SPLIT_K - first;
        }
    }

    __device__ TileCounters& counters(unsigned char* workspace) const { return ((TileCounters*)workspace)[tile]; }

    // Whether the piece at hand is the block's last.
    __device__ bool ends() const { return BLOCKS == 0 || (at >= end && whole >= tiles); }

    // Announces to the peers of all pieces that this block has started.
    static __device__ void announce(unsigned m, unsigned n, unsigned depth, unsigned char* workspace) {
        Work ahead;
        ahead.start(m, n, depth);
        do {
            ahead.next();
            if (ahead.peers > 1) atomicAdd(&ahead.counters(workspace).started, 1u);
        } while (BLOCKS > 0 && ahead.at < ahead.end);
    }

    // Where this thread's packs lie in the workspace, after the tiles' meetings.
    __device__ Pack<GROUPED>* sums(unsigned char* workspace) const {
        return (Pack<GROUPED>*)(workspace + (tiles * sizeof(TileCounters) + 255) / 256 * 256) + threadIdx.x;
    }

    // Which of the workspace's places a peer has. A block that stays shares at most two tiles: the one that it begins
    // inside of, and the one that it ends inside of.
    __device__ size_t slot(unsigned peer) const {
        if constexpr (BLOCKS == 0) return (size_t)tile * SPLIT_K + peer;
        const unsigned block = blockIdx.x - place + peer;
        return 2 * block + (begin_of(block, shared_units) <= tile * per_tile);
    }
};

// Leaves this block's sums in the workspace.
__device__ __forceinline__ void spill_partials(const SCALAR (&sum)[TM][TN], const Work& work, unsigned char* workspace)
{
    Pack<GROUPED>* mine = work.sums(workspace) + work.slot(work.place) * PACKS * THREADS;
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        Pack<GROUPED> pack;
#pragma unroll
        for (int e = 0; e < GROUPED; ++e) pack.element[e] = (&sum[0][0])[p * GROUPED + e];
        mine[p * THREADS] = pack;
    }
}

// Adds up pack `p` of all peers and stores it: few registers, so that the loop over k is compiled as without it.
__device__ __forceinline__ void add_up(int p, const Work& work, unsigned char* workspace, SCALAR* c, unsigned row,
                                       unsigned column, unsigned m, unsigned n EPILOGUE_PARAMETER)
{
    Pack<GROUPED> total{};
    const unsigned peers = BLOCKS > 0 ? work.peers : SPLIT_K;
#pragma unroll 8
    for (unsigned peer = 0; peer < peers; ++peer) {
        const Pack<GROUPED> pack = work.sums(workspace)[(work.slot(peer) * PACKS + p) * THREADS];
#pragma unroll
        for (int e = 0; e < GROUPED; ++e) total.element[e] += pack.element[e];
    }
    const int i = p * GROUPED / TN, j = p * GROUPED % TN;
    const unsigned at_row = row + i / GROUPED * GROUPED * LANES_M + i % GROUPED, at_column = column + j * LANES_N;
    if (at_row >= m) return;
#if EPILOGUE
#pragma unroll
    for (int e = 0; e < GROUPED; ++e)
        if (at_column + e < n) total.element[e] = epilogue(total.element[e], at_row, at_column + e, n);
#endif
    SCALAR* to = c + (size_t)at_row * n + at_column;
    if (n % GROUPED == 0 && at_column < n) *(Pack<GROUPED>*)to = total;
    if (n % GROUPED == 0) return;
#pragma unroll
    for (int e = 0; e < GROUPED; ++e)
        if (at_column + e < n) to[e] = total.element[e];
}

// Meets the peers, and adds up as much of the tile as falls to this block. The first thread speaks for all.
// mine: shared memory, by turns the first of the packs that this block adds up; PACKS or more where none is left.
__device__ __forceinline__ void share_out(const Work& work, unsigned char* workspace, unsigned (&mine)[2], SCALAR* c,
                                          unsigned row, unsigned column, unsigned m, unsigned n EPILOGUE_PARAMETER)
{
    TileCounters& counters = work.counters(workspace);
    const bool speaks = threadIdx.x == 0;
    auto claim = [&] { return atomicAdd(&counters.next, (unsigned)PACKS_AT_ONCE); };
    __threadfence();
    __syncthreads();
    if (speaks) {
        bool all = atomicAdd(&counters.finished, 1u) + 1 == work.peers;
        if (!all && work.ends() && atomicAdd(&counters.started, 0u) == work.peers) {
            while (atomicAdd(&counters.finished, 0u) < work.peers) {}
            all = true;
        }
        mine[0] = all ? claim() : PACKS;
    }
    __syncthreads();
    __threadfence();
    for (int turn = 0; mine[turn] < PACKS; turn = 1 - turn) {
        const unsigned first = mine[turn];
        if (speaks) mine[1 - turn] = claim();
#pragma unroll 4
        for (int p = 0; p < PACKS_AT_ONCE; ++p) add_up(first + p, work, workspace, c, row, column, m, n EPILOGUE_PASSED);
        __syncthreads();
    }
    if (speaks && atomicInc(&counters.gone, work.peers - 1) == work.peers - 1) {
        atomicExch(&counters.started, 0u);
        atomicExch(&counters.finished, 0u);
        atomicExch(&counters.next, 0u);
    }
}
