/* One member of a group of processes that carry out collective operations and look at every
 * element of the results: member PROVIDER RANK RANKS DIRECTORY [OPERATION VICTIM].
 *
 * Members find each other's addresses in the directory. With an operation, each carries it out
 * once after the group is there, but for the victim, which is killed in its place; the others then
 * print how that and a barrier end. */
#include <signal.h>
#include <unistd.h>

#include "guide.h"

enum { MOST = 200000, ROUNDS = 3, MOST_RANKS = 16 };

static int rank, ranks;
static const char *directory;
static fi_addr_t peers[MOST_RANKS];
static struct fid_mc *group;
static uint64_t operand[MOST * MOST_RANKS], result[MOST * MOST_RANKS];

/* Element `at` of the operand of a member. */
static uint64_t element(int member, size_t at)
{
    return (uint64_t) (member + 1) * 1000003 + at * 7;
}

static uint64_t sum(size_t at)
{
    uint64_t all = 0;

    for (int member = 0; member < ranks; member++)
        all += element(member, at);
    return all;
}

static void path(char *to, size_t size, const char *prefix, int member)
{
    snprintf(to, size, "%s/%s%d", directory, prefix, member);
}

/* Writes a file of this member's, which is there as a whole or not at all. */
static void publish(const char *prefix, const void *bytes, size_t length)
{
    char hidden[512], shown[512];
    FILE *file;

    path(hidden, sizeof hidden, ".", rank);
    path(shown, sizeof shown, prefix, rank);
    file = fopen(hidden, "w");
    if (!file || fwrite(bytes, length, 1, file) != 1 || fclose(file) || rename(hidden, shown))
        must("writing a file", -errno);
}

/* Waits until all members have joined, by other means than messages. */
static void meet(void)
{
    char shown[512];

    publish("joined", "", 1);
    for (int member = 0; member < ranks; member++) {
        path(shown, sizeof shown, "joined", member);
        while (access(shown, F_OK)) {
            progress();
            usleep(1000);
        }
    }
}

static void find(int member)
{
    char name[64], shown[512];
    FILE *file;

    path(shown, sizeof shown, "", member);
    while (!(file = fopen(shown, "r")))
        usleep(1000);
    if (fread(name, 1, sizeof name, file) == 0 || fi_av_insert(av, name, 1, &peers[member], 0, NULL) != 1)
        must("finding a member", -FI_EINVAL);
    fclose(file);
}

static void join(void)
{
    struct fi_av_set_attr attr = {
        .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL, .flags = FI_UNIVERSE};
    struct fi_eq_attr eq_attr = {0};
    struct fid_av_set *set;
    struct fi_eq_entry entry;
    struct fid_eq *eq;
    fi_addr_t address;
    char name[64];
    size_t size = sizeof name;
    uint32_t event;
    ssize_t length;

    MUST(fi_eq_open(fabric, &eq_attr, &eq, NULL));
    MUST(fi_ep_bind(ep, &eq->fid, 0));
    MUST(fi_enable(ep));
    MUST(fi_getname(&ep->fid, name, &size));
    publish("", name, size);
    for (int member = 0; member < ranks; member++)
        find(member);
    MUST(fi_av_set(av, &attr, &set, NULL));
    MUST(fi_av_set_addr(set, &address));
    MUST(fi_join_collective(ep, address, set, 0, &group, NULL));
    while ((length = fi_eq_read(eq, &event, &entry, sizeof entry, 0)) == -FI_EAGAIN)
        progress();
    MUST(length);
    if (event != FI_JOIN_COMPLETE)
        must("joining", -FI_EINVAL);
}

/* Starts an operation of `count` elements; rooted ones have this root. */
static ssize_t start(enum fi_collective_op what, size_t count, int root)
{
    fi_addr_t all = fi_mc_addr(group), to = peers[root];

    switch (what) {
    case FI_BARRIER:
        return fi_barrier(ep, all, NULL);
    case FI_BROADCAST:
        return fi_broadcast(ep, operand, count, NULL, all, to, FI_UINT64, 0, NULL);
    case FI_ALLTOALL:
        return fi_alltoall(ep, operand, count, NULL, result, NULL, all, FI_UINT64, 0, NULL);
    case FI_ALLREDUCE:
        return fi_allreduce(ep, operand, count, NULL, result, NULL, all, FI_UINT64, FI_SUM, 0, NULL);
    case FI_ALLGATHER:
        return fi_allgather(ep, operand, count, NULL, result, NULL, all, FI_UINT64, 0, NULL);
    case FI_REDUCE_SCATTER:
        return fi_reduce_scatter(ep, operand, count, NULL, result, NULL, all, FI_UINT64, FI_SUM, 0, NULL);
    case FI_REDUCE:
        return fi_reduce(ep, operand, count, NULL, result, NULL, all, to, FI_UINT64, FI_SUM, 0, NULL);
    case FI_SCATTER:
        return fi_scatter(ep, operand, count, NULL, result, NULL, all, to, FI_UINT64, 0, NULL);
    default:
        return fi_gather(ep, operand, count, NULL, result, NULL, all, to, FI_UINT64, 0, NULL);
    }
}

/* Waits for the end of an operation, asleep. Returns 0 or the error's number. */
static int end(void)
{
    struct fi_cq_err_entry failed = {0};
    struct fi_cq_msg_entry entry;
    ssize_t status;

    while ((status = fi_cq_sread(tx_cq, &entry, 1, NULL, -1)) == -FI_EAGAIN)
        ;
    if (status != -FI_EAVAIL) {
        MUST(status);
        return entry.flags & FI_COLLECTIVE ? 0 : FI_EOTHER;
    }
    MUST(fi_cq_readerr(tx_cq, &failed, 0));
    return failed.err;
}

static int carry_out(enum fi_collective_op what, size_t count, int root)
{
    ssize_t status;

    for (size_t at = 0; at < count * ranks; at++) {
        operand[at] = element(rank, at);
        result[at] = UINT64_MAX;
    }
    while ((status = start(what, count, root)) == -FI_EAGAIN)
        progress();
    MUST(status);
    return end();
}

/* What element `at` of the memory that an operation writes has to be afterwards. */
static uint64_t expected(enum fi_collective_op what, size_t count, int root, size_t at)
{
    int slice = at / count;

    switch (what) {
    case FI_BROADCAST:
        return at < count ? element(root, at) : element(rank, at);
    case FI_ALLTOALL:
        return element(slice, rank * count + at % count);
    case FI_ALLGATHER:
        return element(slice, at % count);
    case FI_GATHER:
        return rank == root ? element(slice, at % count) : UINT64_MAX;
    case FI_ALLREDUCE:
        return at < count ? sum(at) : UINT64_MAX;
    case FI_REDUCE:
        return at < count && rank == root ? sum(at) : UINT64_MAX;
    case FI_REDUCE_SCATTER:
        return at < count ? sum(rank * count + at) : UINT64_MAX;
    case FI_SCATTER:
        return at < count ? element(root, rank * count + at) : UINT64_MAX;
    default:
        return UINT64_MAX;
    }
}

static void look_at(enum fi_collective_op what, size_t count, int root)
{
    const uint64_t *written = what == FI_BROADCAST ? operand : result;

    for (size_t at = 0; at < count * ranks; at++) {
        if (written[at] == expected(what, count, root, at))
            continue;
        printf("operation %d of %zu elements, root %d: element %zu is %llu\n", (int) what, count, root, at,
               (unsigned long long) written[at]);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    /* In one packet, in several, and read by the receiver. */
    static const size_t counts[ROUNDS] = {1, 3000, MOST};
    int operations = 0;

    (void) argc;
    rank = atoi(argv[2]);
    ranks = atoi(argv[3]);
    directory = argv[4];
    begin(argv[1]);
    hints->caps = FI_MSG | FI_TAGGED | FI_COLLECTIVE;
    open_domain();
    open_endpoint(FI_WAIT_FD);
    join();
    if (argc > 5) {
        meet();
        if (rank == atoi(argv[6]))
            kill(getpid(), SIGKILL);
        printf("%s\n", carry_out(atoi(argv[5]), 1, 0) ? "failed" : "succeeded");
        printf("%s\n", carry_out(FI_BARRIER, 0, 0) ? "failed" : "succeeded");
        return 0;
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int what = FI_BARRIER; what <= FI_GATHER; what++) {
            int root = (round + what) % ranks, status = carry_out(what, counts[round], root);

            must("operation", -status);
            look_at(what, counts[round], root);
            operations++;
        }
    }
    MUST(-carry_out(FI_BARRIER, 0, 0));
    printf("%d operations\n", operations);
    return 0;
}
