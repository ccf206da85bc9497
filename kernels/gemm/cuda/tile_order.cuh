// In which order blocks take the tiles of a matrix, so that those in work at a time share rows and columns in L2.
//
// rows     swaths of GROUP rows, column by column
// snake    the same, each second swath backward
// hilbert  a generalized Hilbert curve, which goes through rectangles too (J. Cerveny's recursion): halves while much wider than
//          high, else three parts of which the outer ones are turned

struct Cell {
    int row, column;
};

__device__ __forceinline__ Cell in_swaths(unsigned index, unsigned rows, unsigned columns, bool turns)
{
    const unsigned of_swath = GROUP * columns, swath = index / of_swath, inside = index % of_swath;
    const unsigned high = min((unsigned)GROUP, rows - swath * GROUP), column = inside / high;
    return {int(swath * GROUP + inside % high), int(turns && swath % 2 ? columns - 1 - column : column)};
}

// A rectangle from (x, y) on: `width` cells in the direction (ax, ay), `height` cells in (bx, by).
__device__ __forceinline__ Cell on_hilbert(int index, int rows, int columns)
{
    int x = 0, y = 0, ax = columns >= rows, ay = !ax, bx = ay, by = ax;
    int width = max(columns, rows), height = min(columns, rows);
    while (width > 1 && height > 1) {
        int half = width / 2, across = height / 2;
        if (2 * width > 3 * height) {
            half += half % 2 && width > 2;  // an even number of steps, where there is room
            if (index < half * height) {
                width = half;
            } else {
                index -= half * height;
                x += half * ax, y += half * ay, width -= half;
            }
            continue;
        }
        across += across % 2 && height > 2;
        const int first = across * half, middle = width * (height - across);
        if (index < first + middle && index >= first) {
            index -= first;
            x += across * bx, y += across * by, height -= across;
            continue;
        }
        const int tx = ax, ty = ay;
        if (index < first) {
            ax = bx, ay = by, bx = tx, by = ty;
            width = across, height = half;
        } else {
            index -= first + middle;
            x += (width - 1) * ax + (across - 1) * bx, y += (width - 1) * ay + (across - 1) * by;
            ax = -bx, ay = -by, bx = -tx, by = -ty;
            height = width - half, width = across;
        }
    }
    x += index * (height == 1 ? ax : bx), y += index * (height == 1 ? ay : by);
    return {y, x};
}

__device__ __forceinline__ Cell cell_at(unsigned index, unsigned rows, unsigned columns)
{
#if ORDER == ORDER_hilbert
    return on_hilbert(index, rows, columns);
#else
    return in_swaths(index, rows, columns, ORDER == ORDER_snake);
#endif
}
