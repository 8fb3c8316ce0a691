/*
 * The rate of messages that one endpoint receives from several, over any provider of libfabric. The senders are endpoints
 * of one process, so that two processors are enough for all.
 *
 *   usage: peers PROVIDER PEERS BYTES MESSAGES PORT            receives, and listens at the TCP port for the sender
 *          peers PROVIDER PEERS BYTES MESSAGES PORT HOST       sends; prints messages per second
 *
 * MESSAGES is that of all peers. They are sent twice; the first time is not timed.
 */
#include <netdb.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_PEERS = 64, WINDOW = 32, ADDRESS = 256, READ = 64 };

#define CALL(call)                                                                       \
    do {                                                                                 \
        ssize_t status = (call);                                                         \
        if (status < 0) {                                                                \
            fprintf(stderr, "peers: %s: %zd %s\n", #call, status, fi_strerror(-status)); \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

/* A send or receive. */
struct request {
    struct fi_context2 context;
    int endpoint;
    char *buffer;
    void *descriptor;
};

static struct fid_ep *endpoints[MOST_PEERS];
static struct fid_cq *queue;
static fi_addr_t destinations[MOST_PEERS];
static struct request *requests;
static int count; /* endpoints of this process */
static int peers, bytes;

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* The connection by which the processes tell each other of addresses and of the end. */
static int meet(const char *port, const char *host)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    int one = 1, socket_, listener;

    if (!host)
        hints.ai_flags = AI_PASSIVE;
    if (getaddrinfo(host, port, &hints, &found)) {
        fprintf(stderr, "peers: no address %s\n", host);
        exit(1);
    }
    socket_ = socket(found->ai_family, SOCK_STREAM, 0);
    if (host) {
        if (connect(socket_, found->ai_addr, found->ai_addrlen)) {
            perror("peers: connect");
            exit(1);
        }
        return socket_;
    }
    listener = socket_;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(listener, found->ai_addr, found->ai_addrlen) || listen(listener, 1) ||
        (socket_ = accept(listener, NULL, NULL)) < 0) {
        perror("peers: listen");
        exit(1);
    }
    close(listener);
    return socket_;
}

static void say(int socket_, const void *words, size_t length)
{
    if (send(socket_, words, length, 0) != (ssize_t) length) {
        perror("peers: send");
        exit(1);
    }
}

static void hear(int socket_, void *words, size_t length)
{
    if (recv(socket_, words, length, MSG_WAITALL) != (ssize_t) length) {
        fprintf(stderr, "peers: the other process is gone\n");
        exit(1);
    }
}

static void open_endpoints(const char *provider, int socket_, int others)
{
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT, .size = 16384};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = MOST_PEERS};
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *vectors[MOST_PEERS];
    struct fid_mr *region = NULL;
    int slots = WINDOW * (count > others ? count : others);
    char *memory = aligned_alloc(4096, ((size_t) slots * bytes + 4095) / 4096 * 4096);

    hints->fabric_attr->prov_name = strdup(provider);
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_TAGGED;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    CALL(fi_getinfo(FI_VERSION(1, 11), NULL, NULL, 0, hints, &info));
    CALL(fi_fabric(info->fabric_attr, &fabric, NULL));
    CALL(fi_domain(fabric, info, &domain, NULL));
    CALL(fi_cq_open(domain, &cq_attr, &queue, NULL));
    for (int i = 0; i < count; i++) {
        /* Stock's endpoints share no vector. */
        CALL(fi_av_open(domain, &av_attr, &vectors[i], NULL));
        CALL(fi_endpoint(domain, info, &endpoints[i], NULL));
        CALL(fi_ep_bind(endpoints[i], &vectors[i]->fid, 0));
        CALL(fi_ep_bind(endpoints[i], &queue->fid, FI_TRANSMIT | FI_RECV));
        CALL(fi_enable(endpoints[i]));
    }
    memset(memory, 0, (size_t) slots * bytes);
    if (info->domain_attr->mr_mode & FI_MR_LOCAL)
        CALL(fi_mr_reg(domain, memory, (size_t) slots * bytes, FI_SEND | FI_RECV, 0, 0, 0, &region, NULL));
    requests = calloc(slots, sizeof(*requests));
    for (int i = 0; i < slots; i++) {
        requests[i].endpoint = i % count;
        requests[i].buffer = memory + (size_t) i * bytes;
        requests[i].descriptor = region ? fi_mr_desc(region) : NULL;
    }
    for (int i = 0; i < count; i++) {
        char address[ADDRESS] = {0};
        size_t length = ADDRESS;

        CALL(fi_getname(&endpoints[i]->fid, address, &length));
        say(socket_, address, ADDRESS);
    }
    for (int i = 0; i < others; i++) {
        char address[ADDRESS];

        hear(socket_, address, ADDRESS);
        for (int j = 0; j < count; j++)
            CALL(fi_av_insert(vectors[j], address, 1, &destinations[i], 0, NULL) == 1 ? 0 : -FI_EINVAL);
    }
}

static int read_queue(struct fi_cq_entry *entries)
{
    ssize_t read = fi_cq_read(queue, entries, READ);

    if (read == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};

        fi_cq_readerr(queue, &error, 0);
        fprintf(stderr, "peers: a request failed: %s\n", fi_strerror(error.err));
        exit(1);
    }
    if (read == -FI_EAGAIN)
        return 0;
    CALL(read);
    return read;
}

static void post_receive(struct request *request)
{
    ssize_t status;

    do {
        status = fi_trecv(endpoints[0], request->buffer, bytes, request->descriptor, FI_ADDR_UNSPEC, 0, ~0ULL,
                          &request->context);
    } while (status == -FI_EAGAIN);
    CALL(status);
}

static void receive(long messages)
{
    struct fi_cq_entry entries[READ];

    while (messages > 0) {
        int read = read_queue(entries);

        messages -= read;
        for (int i = 0; i < read; i++)
            post_receive(entries[i].op_context);
    }
}

/* Sends, and waits until the other process has said that all have come. */
static void send_all(long messages, int socket_)
{
    struct fi_cq_entry entries[READ];
    /* In the order in which they became free, so that all peers have their turns. */
    struct request *idle[WINDOW * MOST_PEERS];
    int slots = WINDOW * count, first = 0, waiting = slots, polls = 0;
    char word;

    for (int i = 0; i < slots; i++)
        idle[i] = &requests[i];
    while (messages > 0 || waiting < slots) {
        int read;

        while (messages > 0 && waiting > 0) {
            struct request *request = idle[first];
            ssize_t status = fi_tsend(endpoints[request->endpoint], request->buffer, bytes, request->descriptor,
                                      destinations[0], 0, &request->context);

            if (status == -FI_EAGAIN)
                break;
            CALL(status);
            first = (first + 1) % slots;
            waiting--;
            messages--;
        }
        read = read_queue(entries);
        for (int i = 0; i < read; i++)
            idle[(first + waiting++) % slots] = entries[i].op_context;
    }
    /* The provider may have to go on sending. */
    for (;;) {
        read_queue(entries);
        if (++polls % 16 == 0) {
            ssize_t heard = recv(socket_, &word, 1, MSG_DONTWAIT);

            if (heard == 1)
                return;
            if (heard == 0) {
                fprintf(stderr, "peers: the receiver is gone\n");
                exit(1);
            }
        }
    }
}

int main(int argc, char **argv)
{
    const char *host = argc > 6 ? argv[6] : NULL;
    long messages;
    int socket_;
    char word = 'x';

    if (argc < 6 || argc > 7 || (peers = atoi(argv[2])) < 1 || peers > MOST_PEERS || (bytes = atoi(argv[3])) < 1 ||
        (messages = atol(argv[4])) < 1) {
        fprintf(stderr, "usage: peers PROVIDER PEERS BYTES MESSAGES PORT [HOST]\n");
        return 2;
    }
    socket_ = meet(argv[5], host);
    count = host ? peers : 1;
    open_endpoints(argv[1], socket_, host ? 1 : peers);
    if (!host) {
        for (int i = 0; i < WINDOW * peers; i++)
            post_receive(&requests[i]);
        say(socket_, &word, 1);
        for (int round = 0; round < 2; round++) {
            receive(messages);
            say(socket_, &word, 1);
        }
        /* Until the sender has gone, which may wait for the last words of the provider. */
        while (recv(socket_, &word, 1, MSG_DONTWAIT) != 0) {
            struct fi_cq_entry entries[READ];

            read_queue(entries);
        }
        return 0;
    }
    hear(socket_, &word, 1);
    send_all(messages, socket_);
    {
        double begin = now();

        send_all(messages, socket_);
        printf("rate %.1f\n", messages / (now() - begin));
    }
    return 0;
}
