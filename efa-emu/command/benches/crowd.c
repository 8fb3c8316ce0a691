/*
 * Times collectives of all ranks, and a ping-pong of one pair among ranks that wait, for machines with more
 * ranks than processors. Any MPI library.
 *
 *   usage: crowd SECONDS [BYTES]...
 *
 * Rank 0 prints one line for each operation and size: name, bytes, microseconds. Without a size the ranks only
 * wait for each other once.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;
static char *from, *to;

static void alltoall(int bytes)
{
    MPI_Alltoall(from, bytes, MPI_CHAR, to, bytes, MPI_CHAR, MPI_COMM_WORLD);
}

static void allreduce(int bytes)
{
    MPI_Allreduce(from, to, bytes / 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
}

/* Times an operation of all ranks. Rank 0 says when the time is over, outside what is timed. */
static double time_all(void (*operation)(int), int bytes, double seconds)
{
    double spent = 0, begin = MPI_Wtime();
    long rounds = 0;
    int go = 1;

    for (int i = 0; i < 10; i++)
        operation(bytes);
    while (go) {
        double start;

        MPI_Barrier(MPI_COMM_WORLD);
        start = MPI_Wtime();
        for (int i = 0; i < 20; i++)
            operation(bytes);
        spent += MPI_Wtime() - start;
        rounds += 20;
        go = MPI_Wtime() - begin < seconds;
        MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    return spent / rounds * 1e6;
}

/* Half a round trip between the first rank and the first of the second half; the others wait for its end. */
static double time_pair(int bytes, double seconds)
{
    int other = rank == 0 ? size / 2 : 0;
    double begin = MPI_Wtime(), end = begin;
    long rounds = 0;

    if (rank == 0) {
        while (end - begin < seconds) {
            for (int i = 0; i < 20; i++) {
                MPI_Send(from, bytes, MPI_CHAR, other, 1, MPI_COMM_WORLD);
                MPI_Recv(to, bytes, MPI_CHAR, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            }
            rounds += 20;
            end = MPI_Wtime();
        }
        MPI_Send(from, 0, MPI_CHAR, other, 2, MPI_COMM_WORLD);
    } else if (rank == size / 2) {
        for (;;) {
            MPI_Status status;

            MPI_Recv(to, bytes, MPI_CHAR, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            if (status.MPI_TAG == 2)
                break;
            MPI_Send(from, bytes, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return rank == 0 ? (end - begin) / rounds / 2 * 1e6 : 0;
}

int main(int argc, char **argv)
{
    double seconds;
    size_t largest = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 2) {
        fprintf(stderr, "usage: crowd SECONDS [BYTES]...\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    seconds = atof(argv[1]);
    for (int i = 2; i < argc; i++)
        if (strtoul(argv[i], NULL, 10) > largest)
            largest = strtoul(argv[i], NULL, 10);
    from = calloc(size, largest);
    to = calloc(size, largest);
    for (int i = 2; i < argc; i++) {
        int bytes = atoi(argv[i]);
        double us[3];

        us[0] = time_all(alltoall, bytes, seconds);
        us[1] = time_all(allreduce, bytes, seconds);
        us[2] = time_pair(bytes, seconds);
        if (rank == 0)
            printf("alltoall %d %.1f\nallreduce %d %.1f\npair %d %.1f\n", bytes, us[0], bytes, us[1],
                   bytes, us[2]);
        fflush(stdout);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
