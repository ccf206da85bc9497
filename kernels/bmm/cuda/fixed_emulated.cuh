// What stacks leave fixed of the emulated gemm's letters: k is one block's, columns are one part, tiles go by rows in swaths of
// 8, consumers take no turns. Two consumers are given registers of the producer's, one is given none.

#define SPLIT_K 1
#define PARTS 1
#define GROUP 8
#define ORDER_rows 0
#define ORDER_snake 1
#define ORDER ORDER_rows
#define TURNS_free 0
#define TURNS_taken 1
#define TURNS_early 2
#define TURNS TURNS_free
#define GIVEN (CONSUMERS == 2 ? 232 : 0)
