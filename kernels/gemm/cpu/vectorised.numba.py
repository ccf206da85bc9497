"""C = op(A) op(B) with the innermost loop written in vectors of WIDTH elements; no blocks.

Idea: a multiply-add does WIDTH elements at once. The layout of B decides the direction of the vectors:

    rows of N values:  C[i, j:j+WIDTH] += A[i, p] * B[p, j:j+WIDTH]          a value of A times a vector of B
    rows of K values:  C[i, j] += sum of A[i, p:p+WIDTH] * B[j, p:p+WIDTH]   two vectors; lanes are added last

The sums of a vector of C stay in registers. If WIDTH exceeds the CPU's own, a vector takes several registers,
whose sums are independent. B is read from end to end for every row of C: if it does not fit into the caches,
memory is the limit, which the next step removes.

Constants in front of this text: WIDTH, THREADS; A_TRANSPOSED and B_TRANSPOSED (as stored).
Letters: i, j, p run over M, N, K.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
from numba import carray


@njit(inline="always")
def _row_by_columns(row, b, c, i, n, k):
    """A row of C from a row of A and B's rows of N values."""
    for j in range(0, n - WIDTH + 1, WIDTH):
        total = broadcast(row.dtype.type(0), WIDTH)
        for p in range(k):
            total = multiply_add(broadcast(row[p], WIDTH), load(pointer(b, p * n + j), WIDTH), total)
        store(pointer(c, i * n + j), total)
    left = n % WIDTH
    if left:
        j = n - left
        total = broadcast(row.dtype.type(0), WIDTH)
        for p in range(k):
            total = multiply_add(
                broadcast(row[p], WIDTH), load_first(pointer(b, p * n + j), left, WIDTH), total
            )
        store_first(pointer(c, i * n + j), total, left)


@njit(inline="always")
def _row_by_rows(row, b, c, i, n, k):
    """A row of C from a row of A and B's rows of K values."""
    whole = k // WIDTH * WIDTH
    for j in range(n):
        sums = broadcast(row.dtype.type(0), WIDTH)
        for p in range(0, whole, WIDTH):
            sums = multiply_add(load(pointer(row, p), WIDTH), load(pointer(b, j * k + p), WIDTH), sums)
        if whole < k:
            left = load_first(pointer(row, whole), k - whole, WIDTH)
            sums = multiply_add(left, load_first(pointer(b, j * k + whole), k - whole, WIDTH), sums)
        c[i, j] = total(sums)


@njit(inline="always")
def work(crew, member, like):
    """Takes rows of C."""
    m, n, k = word(crew, 3), word(crew, 4), word(crew, 5)
    a = carray(place_at(word(crew, 0), like), (k, m) if A_TRANSPOSED else (m, k))
    b = carray(place_at(word(crew, 1), like), (n, k) if B_TRANSPOSED else (k, n))
    c, row = carray(place_at(word(crew, 2), like), (m, n)), np.empty(k, like.dtype)
    i = take(crew, 0)
    while i < m:
        # If A is stored transposed, a row of op(A) is gathered once and used for all of C's row.
        # Element by element: an assignment of slices takes Numba a second to compile, for its messages.
        for p in range(k):
            row[p] = a[p, i] if A_TRANSPOSED else a[i, p]
        if B_TRANSPOSED:
            _row_by_rows(row, b, c, i, n, k)
        else:
            _row_by_columns(row, b, c, i, n, k)
        finish(crew, 0)
        i = take(crew, 0)
    if member == 0:
        wait_until(crew, 0, m)


def gemm(a, b, c, m, n, k):
    """Writes c."""
    run_together(THREADS, c.dtype, (address_of(a), address_of(b), address_of(c), m, n, k))
