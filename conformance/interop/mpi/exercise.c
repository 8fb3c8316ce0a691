/*
 * An MPI program that verifies every byte it receives. Any MPI library, any number of ranks from 2.
 *
 *   usage: exercise [most BYTES] [p2p] [wildcards] [collectives] [rma] [hinted] [pingpong SECONDS]
 *
 * Without parts it runs the first four; with `most`, p2p, wildcards and collectives send no longer data. Rank 0 prints one line for each part. A wrong byte, source,
 * tag or count names the rank and what it had expected, and ends the job with status 1.
 */
#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;
/* What has been verified on this rank. */
static long checks;

static void fail(const char *format, ...)
{
    va_list arguments;

    fprintf(stderr, "rank %d: ", rank);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

#define EXPECT(condition, ...)      \
    do {                            \
        checks++;                   \
        if (!(condition))           \
            fail(__VA_ARGS__);      \
    } while (0)

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);

    if (!memory)
        fail("no memory for %zu bytes", bytes);
    return memory;
}

/* Byte `i` of the message `key`: different for shifted, swapped and stale data. */
static unsigned char content(uint32_t key, size_t i)
{
    uint32_t x = key * 2654435761u ^ (uint32_t) i * 2246822519u;

    return (unsigned char) (x >> 24 ^ x >> 11);
}

static void fill(unsigned char *data, size_t bytes, uint32_t key)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = content(key, i);
}

static void verify(const unsigned char *data, size_t bytes, uint32_t key, const char *what)
{
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != content(key, i))
            fail("%s: byte %zu of %zu is %#x, expected %#x", what, i, bytes, data[i], content(key, i));
    checks++;
}

static uint32_t key_of(int source, int target, int number)
{
    return (uint32_t) source << 24 ^ (uint32_t) target << 16 ^ (uint32_t) number;
}

static void expect_status(const MPI_Status *status, int source, int tag, int bytes, const char *what)
{
    int count;

    MPI_Get_count(status, MPI_BYTE, &count);
    EXPECT(status->MPI_SOURCE == source && status->MPI_TAG == tag && count == bytes,
           "%s: got %d bytes from %d with tag %d, expected %d bytes from %d with tag %d", what, count,
           status->MPI_SOURCE, status->MPI_TAG, bytes, source, tag);
}

/* Around the usual borders of packets, eager buffers and rendezvous. */
static const int SIZES[] = {0,     1,     7,      64,     1000,    4096,    8191,    8192,
                            8928,  16384, 32767,  65536,  65537,   262144,  1048576, 1048577,
                            8388608};
#define COUNT(array) ((int) (sizeof(array) / sizeof((array)[0])))
enum { LARGEST = 8388608 };
static int most = LARGEST;

/* Each rank to the next, in every size: nonblocking, then blocking in turn, then synchronous. */
static void ring(unsigned char *out, unsigned char *in)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;

    for (int i = 0; i < COUNT(SIZES) && SIZES[i] <= most; i++) {
        MPI_Request requests[2];
        MPI_Status statuses[2];

        fill(out, SIZES[i], key_of(rank, next, i));
        memset(in, 0xa5, SIZES[i]);
        MPI_Irecv(in, SIZES[i], MPI_BYTE, previous, i, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(out, SIZES[i], MPI_BYTE, next, i, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, statuses);
        expect_status(&statuses[0], previous, i, SIZES[i], "nonblocking");
        verify(in, SIZES[i], key_of(previous, rank, i), "nonblocking");

        memset(in, 0xa5, SIZES[i]);
        MPI_Sendrecv(out, SIZES[i], MPI_BYTE, next, i, in, SIZES[i], MPI_BYTE, previous, i,
                     MPI_COMM_WORLD, &statuses[0]);
        verify(in, SIZES[i], key_of(previous, rank, i), "sendrecv");
    }
    for (int i = 0; i < COUNT(SIZES) && SIZES[i] <= most; i++) {
        fill(out, SIZES[i], key_of(rank, next, i));
        memset(in, 0xa5, SIZES[i]);
        if (rank == 0) {
            MPI_Ssend(out, SIZES[i], MPI_BYTE, next, i, MPI_COMM_WORLD);
            MPI_Recv(in, SIZES[i], MPI_BYTE, previous, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(in, SIZES[i], MPI_BYTE, previous, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(out, SIZES[i], MPI_BYTE, next, i, MPI_COMM_WORLD);
        }
        verify(in, SIZES[i], key_of(previous, rank, i), "blocking");
    }
}

/* Small and large in turn: the message that is received last arrived, or was announced, first. */
static int mixed_size(int i)
{
    static const int sizes[] = {16, 200000, 3000, 0, 70000, 9000, 1, 40000};

    return sizes[i % COUNT(sizes)] < most ? sizes[i % COUNT(sizes)] : most;
}

enum { BATCH = 32, LARGEST_MIXED = 200000 };

/* Messages are received in the opposite order of their tags, and all before that with one tag. */
static void out_of_order(unsigned char *out, unsigned char *in)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    MPI_Request requests[BATCH];
    MPI_Status status;

    for (int same_tag = 0; same_tag < 2; same_tag++) {
        for (int i = 0; i < BATCH; i++) {
            unsigned char *message = out + (size_t) i * LARGEST_MIXED;

            fill(message, mixed_size(i), key_of(rank, next, i));
            MPI_Isend(message, mixed_size(i), MPI_BYTE, next, same_tag ? 7 : i, MPI_COMM_WORLD,
                      &requests[i]);
        }
        for (int turn = 0; turn < BATCH; turn++) {
            int i = same_tag ? turn : BATCH - 1 - turn;
            int tag = same_tag ? 7 : i;

            MPI_Recv(in, LARGEST_MIXED, MPI_BYTE, previous, tag, MPI_COMM_WORLD, &status);
            expect_status(&status, previous, tag, mixed_size(i), "out of order");
            verify(in, mixed_size(i), key_of(previous, rank, i), "out of order");
        }
        MPI_Waitall(BATCH, requests, MPI_STATUSES_IGNORE);
    }
}

/*
 * Rank 0 receives from any source with any tag; messages of one sender stay in order. It may probe first:
 * with a probe that binds the message, or with one that does not.
 */
static void from_anybody(unsigned char *out, unsigned char *in, int probing)
{
    if (rank != 0) {
        for (int i = 0; i < BATCH; i++) {
            fill(out, mixed_size(i), key_of(rank, 0, i));
            MPI_Send(out, mixed_size(i), MPI_BYTE, 0, i % 5, MPI_COMM_WORLD);
        }
        return;
    }
    int *taken = allocate(size * sizeof(*taken));

    memset(taken, 0, size * sizeof(*taken));
    for (int n = 0; n < (size - 1) * BATCH; n++) {
        MPI_Status probed, status;
        int i;

        if (probing && n % 3 == 0) {
            MPI_Message message;

            MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &probed);
            MPI_Mrecv(in, LARGEST_MIXED, MPI_BYTE, &message, &status);
        } else if (probing && n % 3 == 1) {
            MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &probed);
            MPI_Recv(in, LARGEST_MIXED, MPI_BYTE, probed.MPI_SOURCE, probed.MPI_TAG, MPI_COMM_WORLD,
                     &status);
        } else {
            MPI_Recv(in, LARGEST_MIXED, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD,
                     &status);
        }
        i = taken[status.MPI_SOURCE]++;
        expect_status(&status, status.MPI_SOURCE, i % 5, mixed_size(i), "wildcard");
        verify(in, mixed_size(i), key_of(status.MPI_SOURCE, 0, i), "wildcard");
    }
    for (int source = 1; source < size; source++)
        EXPECT(taken[source] == BATCH, "wildcard: %d messages from %d", taken[source], source);
    free(taken);
}

/* Rank 0 receives small messages from any source that arrived before the receive. */
static void from_anybody_early(unsigned char *out, unsigned char *in)
{
    enum { EACH = 4, BYTES = 100 };

    for (int i = 0; rank != 0 && i < EACH; i++) {
        fill(out, BYTES, key_of(rank, 0, i));
        MPI_Send(out, BYTES, MPI_BYTE, 0, i, MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int n = 0; rank == 0 && n < (size - 1) * EACH; n++) {
        MPI_Status status;

        MPI_Recv(in, BYTES, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        verify(in, BYTES, key_of(status.MPI_SOURCE, 0, status.MPI_TAG), "early wildcard");
    }
}

/* All ranks to all ranks at once, completed in any order. */
static void crossing(void)
{
    int total = 2 * size * 4;
    MPI_Request *requests = allocate(total * sizeof(*requests));
    unsigned char **buffers = allocate(total * sizeof(*buffers));
    int n = 0;

    for (int peer = 0; peer < size; peer++)
        for (int i = 0; i < 4; i++, n++) {
            buffers[n] = allocate(mixed_size(i + 1));
            MPI_Irecv(buffers[n], mixed_size(i + 1), MPI_BYTE, peer, i, MPI_COMM_WORLD, &requests[n]);
        }
    for (int peer = 0; peer < size; peer++)
        for (int i = 0; i < 4; i++, n++) {
            buffers[n] = allocate(mixed_size(i + 1));
            fill(buffers[n], mixed_size(i + 1), key_of(rank, peer, i));
            MPI_Isend(buffers[n], mixed_size(i + 1), MPI_BYTE, peer, i, MPI_COMM_WORLD, &requests[n]);
        }
    for (n = 0; n < total; n++) {
        int done;

        MPI_Waitany(total, requests, &done, MPI_STATUS_IGNORE);
        if (done < total / 2)
            verify(buffers[done], mixed_size(done % 4 + 1), key_of(done / 4, rank, done % 4), "crossing");
        free(buffers[done]);
    }
    free(buffers);
    free(requests);
}

/* A column of a matrix: the sent and received data has gaps. */
static void strided(void)
{
    enum { ROWS = 30000, WIDTH = 3 };
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    int *matrix = allocate(sizeof(int) * ROWS * WIDTH);
    MPI_Datatype column;

    for (int i = 0; i < ROWS * WIDTH; i++)
        matrix[i] = rank * 1000003 + i;
    MPI_Type_vector(ROWS, 1, WIDTH, MPI_INT, &column);
    MPI_Type_commit(&column);
    MPI_Sendrecv(matrix, 1, column, next, 1, matrix + 2, 1, column, previous, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    for (int row = 0; row < ROWS; row++) {
        int *line = matrix + row * WIDTH;

        EXPECT(line[2] == previous * 1000003 + row * WIDTH && line[1] == rank * 1000003 + row * WIDTH + 1,
               "strided: row %d is %d %d %d", row, line[0], line[1], line[2]);
    }
    MPI_Type_free(&column);
    free(matrix);
}

static void point_to_point(void)
{
    unsigned char *out = allocate(LARGEST), *in = allocate(LARGEST);

    ring(out, in);
    MPI_Barrier(MPI_COMM_WORLD);
    out_of_order(out, in);
    MPI_Barrier(MPI_COMM_WORLD);
    crossing();
    strided();
    free(in);
    free(out);
}

static void wildcards(void)
{
    unsigned char *out = allocate(LARGEST_MIXED), *in = allocate(LARGEST_MIXED);

    from_anybody_early(out, in);
    MPI_Barrier(MPI_COMM_WORLD);
    from_anybody(out, in, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    from_anybody(out, in, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    free(in);
    free(out);
}

static void rooted(int count)
{
    unsigned char *data = allocate((size_t) count * size), *mine = allocate(count);
    double *numbers = allocate(sizeof(double) * count), *sums = allocate(sizeof(double) * count);

    for (int root = 0; root < size; root++) {
        if (rank == root)
            fill(data, count, root);
        else
            memset(data, 0, count);
        MPI_Bcast(data, count, MPI_BYTE, root, MPI_COMM_WORLD);
        verify(data, count, root, "bcast");

        fill(mine, count, key_of(rank, root, 1));
        MPI_Gather(mine, count, MPI_BYTE, data, count, MPI_BYTE, root, MPI_COMM_WORLD);
        for (int r = 0; rank == root && r < size; r++)
            verify(data + (size_t) r * count, count, key_of(r, root, 1), "gather");

        for (int r = 0; rank == root && r < size; r++)
            fill(data + (size_t) r * count, count, key_of(root, r, 2));
        MPI_Scatter(data, count, MPI_BYTE, mine, count, MPI_BYTE, root, MPI_COMM_WORLD);
        verify(mine, count, key_of(root, rank, 2), "scatter");

        for (int i = 0; i < count; i++)
            numbers[i] = rank + 1 + i;
        MPI_Reduce(numbers, sums, count, MPI_DOUBLE, MPI_SUM, root, MPI_COMM_WORLD);
        for (int i = 0; rank == root && i < count; i++)
            EXPECT(sums[i] == size * (size + 1) / 2.0 + (double) size * i, "reduce: element %d is %g", i,
                   sums[i]);
    }
    free(sums);
    free(numbers);
    free(mine);
    free(data);
}

static void everybody(int count)
{
    unsigned char *out = allocate((size_t) count * size), *in = allocate((size_t) count * size);
    int64_t *numbers = allocate(sizeof(int64_t) * count), *sums = allocate(sizeof(int64_t) * count);
    MPI_Request request;

    for (int i = 0; i < count; i++)
        numbers[i] = (int64_t) rank * 1000000007 - i;
    for (int turn = 0; turn < 2; turn++) {
        memset(sums, 0, sizeof(int64_t) * count);
        if (turn == 0) {
            MPI_Allreduce(numbers, sums, count, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
        } else {
            MPI_Iallreduce(numbers, sums, count, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD, &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
        for (int i = 0; i < count; i++)
            EXPECT(sums[i] == (int64_t) size * (size - 1) / 2 * 1000000007 - (int64_t) size * i,
                   "allreduce: element %d is %lld", i, (long long) sums[i]);
    }

    fill(out, count, rank);
    MPI_Allgather(out, count, MPI_BYTE, in, count, MPI_BYTE, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++)
        verify(in + (size_t) r * count, count, r, "allgather");

    for (int r = 0; r < size; r++)
        fill(out + (size_t) r * count, count, key_of(rank, r, 3));
    memset(in, 0, (size_t) count * size);
    MPI_Alltoall(out, count, MPI_BYTE, in, count, MPI_BYTE, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++)
        verify(in + (size_t) r * count, count, key_of(r, rank, 3), "alltoall");
    free(sums);
    free(numbers);
    free(in);
    free(out);
}

/* From rank s to rank r go (s + 2r) * 1000 bytes. */
static void uneven(void)
{
    int *counts = allocate(4 * size * sizeof(int));
    int *offsets = counts + size, *in_counts = offsets + size, *in_offsets = in_counts + size;
    int out_bytes = 0, in_bytes = 0;
    unsigned char *out, *in;

    for (int r = 0; r < size; r++) {
        counts[r] = (rank + 2 * r) * 1000;
        in_counts[r] = (r + 2 * rank) * 1000;
        offsets[r] = out_bytes;
        in_offsets[r] = in_bytes;
        out_bytes += counts[r];
        in_bytes += in_counts[r];
    }
    out = allocate(out_bytes);
    in = allocate(in_bytes);
    for (int r = 0; r < size; r++)
        fill(out + offsets[r], counts[r], key_of(rank, r, 4));
    MPI_Alltoallv(out, counts, offsets, MPI_BYTE, in, in_counts, in_offsets, MPI_BYTE, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++)
        verify(in + in_offsets[r], in_counts[r], key_of(r, rank, 4), "alltoallv");
    free(in);
    free(out);
    free(counts);
}

static void other_communicators(void)
{
    MPI_Comm half;
    int sum, scanned, expected = 0;

    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, half);
    for (int r = rank % 2; r < size; r += 2)
        expected += r;
    EXPECT(sum == expected, "split: sum is %d, expected %d", sum, expected);
    MPI_Comm_free(&half);

    MPI_Scan(&rank, &scanned, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    EXPECT(scanned == rank * (rank + 1) / 2, "scan: %d", scanned);
}

static void collectives(void)
{
    static const int counts[] = {1, 1000, 20000, 262144};

    for (int i = 0; i < COUNT(counts) && counts[i] * sizeof(double) <= (size_t) most; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        rooted(counts[i]);
        everybody(counts[i]);
    }
    uneven();
    other_communicators();
}

/* Active target: fences around puts to the next rank and gets from the one before. */
static void fenced(MPI_Win window, unsigned char *memory, int bytes)
{
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    unsigned char *local = allocate(bytes);

    fill(local, bytes, key_of(rank, next, 5));
    MPI_Win_fence(0, window);
    MPI_Put(local, bytes, MPI_BYTE, next, 0, bytes, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    verify(memory, bytes, key_of(previous, rank, 5), "put");
    MPI_Win_fence(0, window);

    memset(local, 0, bytes);
    fill(memory, bytes, key_of(rank, 0, 6));
    MPI_Win_fence(0, window);
    MPI_Get(local, bytes, MPI_BYTE, previous, 0, bytes, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    verify(local, bytes, key_of(previous, 0, 6), "get");
    free(local);
}

/* Post, start, complete, wait: only neighbours synchronise. */
static void neighbours(MPI_Win window, unsigned char *memory)
{
    enum { BYTES = 50000 };
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    unsigned char *local = allocate(BYTES);
    MPI_Group world, to, from;

    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &next, &to);
    MPI_Group_incl(world, 1, &previous, &from);
    fill(local, BYTES, key_of(rank, next, 7));
    MPI_Win_post(from, 0, window);
    MPI_Win_start(to, 0, window);
    MPI_Put(local, BYTES, MPI_BYTE, next, 0, BYTES, MPI_BYTE, window);
    MPI_Win_complete(window);
    MPI_Win_wait(window);
    verify(memory, BYTES, key_of(previous, rank, 7), "post-start-complete-wait");
    MPI_Group_free(&from);
    MPI_Group_free(&to);
    MPI_Group_free(&world);
    free(local);
}

/* All ranks update rank 0's numbers; the sums show lost updates. */
static void atomics(MPI_Win window, int64_t *numbers)
{
    enum { ADDED = 1000, ROUNDS = 50 };
    int64_t values[ADDED], one = 1, before, last = -1;

    memset(numbers, 0, sizeof(int64_t) * (ADDED + 3));
    for (int i = 0; i < ADDED; i++)
        values[i] = rank + i;
    MPI_Barrier(MPI_COMM_WORLD);

    MPI_Win_lock_all(0, window);
    MPI_Accumulate(values, ADDED, MPI_INT64_T, 0, 0, ADDED, MPI_INT64_T, MPI_SUM, window);
    MPI_Win_flush(0, window);
    for (int i = 0; i < ROUNDS; i++) {
        MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, ADDED, MPI_SUM, window);
        MPI_Win_flush(0, window);
        EXPECT(before > last && before < (int64_t) ROUNDS * size, "fetch_and_op: %lld after %lld",
               (long long) before, (long long) last);
        last = before;
    }
    for (int i = 0; i < ROUNDS; i++) {
        MPI_Get_accumulate(&one, 1, MPI_INT64_T, &before, 1, MPI_INT64_T, 0, ADDED + 1, 1, MPI_INT64_T,
                           MPI_SUM, window);
        MPI_Win_flush(0, window);
    }
    for (int done = 0; done < ROUNDS;) {
        int64_t compare, swap, found;

        MPI_Fetch_and_op(NULL, &compare, MPI_INT64_T, 0, ADDED + 2, MPI_NO_OP, window);
        MPI_Win_flush(0, window);
        swap = compare + 1;
        MPI_Compare_and_swap(&swap, &compare, &found, MPI_INT64_T, 0, ADDED + 2, window);
        MPI_Win_flush(0, window);
        done += found == compare;
    }
    MPI_Win_unlock_all(window);

    MPI_Barrier(MPI_COMM_WORLD);
    if (rank != 0)
        return;
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    for (int i = 0; i < ADDED; i++)
        EXPECT(numbers[i] == (int64_t) size * (size - 1) / 2 + (int64_t) size * i,
               "accumulate: element %d is %lld", i, (long long) numbers[i]);
    for (int i = 0; i < 3; i++)
        EXPECT(numbers[ADDED + i] == (int64_t) ROUNDS * size, "counter %d is %lld, expected %d", i,
               (long long) numbers[ADDED + i], ROUNDS * size);
    MPI_Win_unlock(0, window);
}

/* Passive target: read, change and write under an exclusive lock, while the target only waits. */
static void locked(MPI_Win window, int64_t *numbers)
{
    enum { ROUNDS = 20 };

    numbers[0] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < ROUNDS; i++) {
        int64_t value;

        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
        MPI_Get(&value, 1, MPI_INT64_T, 0, 0, 1, MPI_INT64_T, window);
        MPI_Win_flush(0, window);
        value++;
        MPI_Put(&value, 1, MPI_INT64_T, 0, 0, 1, MPI_INT64_T, window);
        MPI_Win_unlock(0, window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
        EXPECT(numbers[0] == (int64_t) ROUNDS * size, "locked counter is %lld", (long long) numbers[0]);
        MPI_Win_unlock(0, window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void windows(void)
{
    static const int bytes[] = {1, 64, 9000, 100000, 1048576};
    enum { WINDOW = 1048576 };

    for (int created = 0; created < 2; created++) {
        void *memory;
        MPI_Win window;

        if (created) {
            memory = allocate(WINDOW);
            MPI_Win_create(memory, WINDOW, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
        } else {
            MPI_Win_allocate(WINDOW, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
        }
        for (int i = 0; i < COUNT(bytes); i++)
            fenced(window, memory, bytes[i]);
        neighbours(window, memory);
        MPI_Win_free(&window);
        if (created)
            free(memory);

        if (created) {
            memory = allocate(WINDOW);
            MPI_Win_create(memory, WINDOW, sizeof(int64_t), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
        } else {
            MPI_Win_allocate(WINDOW, sizeof(int64_t), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
        }
        atomics(window, memory);
        locked(window, memory);
        MPI_Win_free(&window);
        if (created)
            free(memory);
    }
}

/*
 * Fetch and add on a window that promises one operation only (accumulate_ops), for which a library may use the
 * network's own atomics: all ranks take numbers from rank 0.
 */
static void hinted(void)
{
    enum { ROUNDS = 50 };
    double *numbers, one = 1, before, last = -1;
    MPI_Info info;
    MPI_Win window;

    MPI_Info_create(&info);
    MPI_Info_set(info, "accumulate_ops", "same_op");
    MPI_Info_set(info, "which_accumulate_ops", "sum");
    MPI_Win_allocate(2 * sizeof(double), sizeof(double), info, MPI_COMM_WORLD, &numbers, &window);
    numbers[0] = numbers[1] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window);
    for (int i = 0; i < ROUNDS; i++) {
        MPI_Fetch_and_op(&one, &before, MPI_DOUBLE, 0, 0, MPI_SUM, window);
        MPI_Win_flush(0, window);
        EXPECT(before > last && before < (double) ROUNDS * size, "fetch_and_op: %g after %g", before, last);
        last = before;
        MPI_Accumulate(&one, 1, MPI_DOUBLE, 0, 1, 1, MPI_DOUBLE, MPI_SUM, window);
    }
    MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
    for (int i = 0; rank == 0 && i < 2; i++)
        EXPECT(numbers[i] == (double) ROUNDS * size, "number %d is %g", i, numbers[i]);
    MPI_Win_unlock(rank, window);
    MPI_Win_free(&window);
    MPI_Info_free(&info);
}

/* Messages between neighbours for a while: a job for the tests that kill a rank. */
static void pingpong(double seconds)
{
    unsigned char *data = allocate(200000);
    int peer = rank ^ 1, going = 1;
    double end = MPI_Wtime() + seconds;

    for (int i = 0; peer < size && going; i++) {
        int bytes = mixed_size(i);

        if (rank < peer) {
            going = MPI_Wtime() < end;
            MPI_Send(&going, 1, MPI_INT, peer, 1, MPI_COMM_WORLD);
            MPI_Send(data, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
            MPI_Recv(data, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(&going, 1, MPI_INT, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Recv(data, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(data, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
        }
        checks++;
    }
    free(data);
}

/* Runs a part if it is asked for, and reports that every rank passed. */
static void run(int asked, const char *name, void (*part)(void))
{
    double start = MPI_Wtime();
    long total, before = checks;

    if (!asked)
        return;
    part();
    before = checks - before;
    MPI_Reduce(&before, &total, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("%s: %ld checks on %d ranks in %.1f s\n", name, total, size, MPI_Wtime() - start);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    int p2p = 0, wild = 0, coll = 0, rma = 0, hints = 0;
    double seconds = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "p2p"))
            p2p = 1;
        else if (!strcmp(argv[i], "wildcards"))
            wild = 1;
        else if (!strcmp(argv[i], "collectives"))
            coll = 1;
        else if (!strcmp(argv[i], "rma"))
            rma = 1;
        else if (!strcmp(argv[i], "hinted"))
            hints = 1;
        else if (!strcmp(argv[i], "pingpong") && i + 1 < argc)
            seconds = atof(argv[++i]);
        else if (!strcmp(argv[i], "most") && i + 1 < argc)
            most = atoi(argv[++i]);
        else
            fail("unknown part %s: p2p, wildcards, collectives, rma, hinted, pingpong SECONDS or most BYTES", argv[i]);
    }
    if (!p2p && !wild && !coll && !rma && !hints && seconds == 0)
        p2p = wild = coll = rma = 1;
    if (size < 2)
        fail("one rank cannot talk: start at least two");
    run(p2p, "p2p", point_to_point);
    run(wild, "wildcards", wildcards);
    run(coll, "collectives", collectives);
    run(rma, "rma", windows);
    run(hints, "hinted", hinted);
    if (seconds > 0)
        pingpong(seconds);
    MPI_Finalize();
    return 0;
}
