/*
 * An application that sleeps in fi_cq_sread until a message comes, and one that sends it messages.
 *
 *   usage: sleeper sleep FABRIC COUNT
 *          sleeper send FABRIC ADDRESS COUNT FIFO
 *
 * FABRIC is a pattern (fnmatch) for the name of one of the efa provider's fabrics. The sleeping side prints its address, the
 * thread that will sleep, and a line for each message after it has verified it; then how often
 * fi_cq_sread came back without one. If its completion queue cannot have a wait object, it prints
 * that with libfabric's error, and ends with status 3. The sending side sends a message for each byte
 * that comes through the FIFO.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <fnmatch.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MESSAGE = 64, ADDRESS = 256, REFUSED = 3 };

struct endpoint {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_eq *eq;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
};

/* A message's buffer, and what libfabric needs to know of it. */
struct buffer {
    struct fi_context2 context;
    struct fid_mr *mr;
    unsigned char bytes[MESSAGE];
};

static void fail(const char *what, long error)
{
    fprintf(stderr, "%s: %s (%ld)\n", what, fi_strerror((int) -error), error);
    exit(1);
}

static void check(const char *what, long result)
{
    if (result < 0)
        fail(what, result);
}

static struct fi_info *find(const char *fabric)
{
    struct fi_info *hints = fi_allocinfo(), *all, *info;

    if (!hints)
        fail("fi_allocinfo", -FI_ENOMEM);
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup("efa");
    check("fi_getinfo", fi_getinfo(fi_version(), NULL, NULL, 0, hints, &all));
    fi_freeinfo(hints);
    for (info = all; info; info = info->next)
        if (!fnmatch(fabric, info->fabric_attr->name, 0)) {
            struct fi_info *only = fi_dupinfo(info);

            fi_freeinfo(all);
            return only;
        }
    fprintf(stderr, "the efa provider has no reliable fabric %s\n", fabric);
    exit(1);
}

static struct endpoint open_endpoint(const char *fabric, enum fi_wait_obj wait)
{
    struct endpoint e = { .info = find(fabric) };
    struct fi_eq_attr eq = { .wait_obj = FI_WAIT_NONE };
    struct fi_av_attr av = { .type = FI_AV_TABLE };
    struct fi_cq_attr cq = { .size = 64, .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = wait };
    int result;

    check("fi_fabric", fi_fabric(e.info->fabric_attr, &e.fabric, NULL));
    check("fi_domain", fi_domain(e.fabric, e.info, &e.domain, NULL));
    check("fi_eq_open", fi_eq_open(e.fabric, &eq, &e.eq, NULL));
    check("fi_av_open", fi_av_open(e.domain, &av, &e.av, NULL));
    result = fi_cq_open(e.domain, &cq, &e.cq, NULL);
    if (result && wait != FI_WAIT_NONE) {
        printf("refused: %s (%d)\n", fi_strerror(-result), result);
        exit(REFUSED);
    }
    check("fi_cq_open", result);
    check("fi_endpoint", fi_endpoint(e.domain, e.info, &e.ep, NULL));
    check("fi_ep_bind eq", fi_ep_bind(e.ep, &e.eq->fid, 0));
    check("fi_ep_bind av", fi_ep_bind(e.ep, &e.av->fid, 0));
    check("fi_ep_bind cq", fi_ep_bind(e.ep, &e.cq->fid, FI_SEND | FI_RECV));
    check("fi_enable", fi_enable(e.ep));
    return e;
}

static void close_endpoint(struct endpoint *e)
{
    check("close ep", fi_close(&e->ep->fid));
    check("close cq", fi_close(&e->cq->fid));
    check("close av", fi_close(&e->av->fid));
    check("close eq", fi_close(&e->eq->fid));
    check("close domain", fi_close(&e->domain->fid));
    check("close fabric", fi_close(&e->fabric->fid));
    fi_freeinfo(e->info);
}

static void *description(struct endpoint *e, struct buffer *buffer, uint64_t access)
{
    if (!(e->info->domain_attr->mr_mode & FI_MR_LOCAL))
        return NULL;
    check("fi_mr_reg",
          fi_mr_reg(e->domain, buffer->bytes, MESSAGE, access, 0, 0, 0, &buffer->mr, NULL));
    return fi_mr_desc(buffer->mr);
}

static void release(struct buffer *buffer)
{
    if (buffer->mr)
        check("close mr", fi_close(&buffer->mr->fid));
}

/* Byte `i` of message `number`. */
static unsigned char content(int number, int i)
{
    return (unsigned char) (number * 31 + i * 7 + 1);
}

static void fail_completion(struct endpoint *e)
{
    struct fi_cq_err_entry entry = { 0 };

    check("fi_cq_readerr", fi_cq_readerr(e->cq, &entry, 0));
    fail("completion", -entry.err);
}

static void sleep_until_messages(const char *fabric, int count)
{
    struct endpoint e = open_endpoint(fabric, FI_WAIT_UNSPEC);
    struct buffer *buffers = calloc((size_t) count, sizeof *buffers);
    unsigned char address[ADDRESS];
    size_t length = sizeof address;
    long idle = 0;

    if (!buffers)
        fail("calloc", -FI_ENOMEM);
    for (int i = 0; i < count; i++) {
        struct buffer *buffer = &buffers[i];
        void *desc = description(&e, buffer, FI_RECV);
        ssize_t result;

        do
            result = fi_recv(e.ep, buffer->bytes, MESSAGE, desc, FI_ADDR_UNSPEC, &buffer->context);
        while (result == -FI_EAGAIN);
        check("fi_recv", result);
    }
    check("fi_getname", fi_getname(&e.ep->fid, address, &length));
    printf("thread %ld address ", (long) syscall(SYS_gettid));
    for (size_t i = 0; i < length; i++)
        printf("%02x", address[i]);
    puts(".");
    for (int done = 0; done < count;) {
        struct fi_cq_entry entry;
        struct buffer *buffer;
        ssize_t result = fi_cq_sread(e.cq, &entry, 1, NULL, -1);

        if (result == -FI_EAVAIL)
            fail_completion(&e);
        if (result == 0 || result == -FI_EAGAIN || result == -FI_EINTR) {
            idle++;
            continue;
        }
        check("fi_cq_sread", result);
        buffer = entry.op_context;
        for (int i = 0; i < MESSAGE; i++)
            if (buffer->bytes[i] != content(done, i)) {
                fprintf(stderr, "byte %d of message %d is %d\n", i, done, buffer->bytes[i]);
                exit(1);
            }
        release(buffer);
        printf("message %d\n", ++done);
    }
    printf("woken %ld times by nothing\n", idle);
    close_endpoint(&e);
    free(buffers);
}

static fi_addr_t insert(struct endpoint *e, const char *text)
{
    unsigned char address[ADDRESS] = { 0 };
    fi_addr_t peer;

    for (size_t i = 0; i < sizeof address && sscanf(text, "%2hhx", &address[i]) == 1; i++)
        text += 2;
    if (fi_av_insert(e->av, address, 1, &peer, 0, NULL) != 1)
        fail("fi_av_insert", -FI_EINVAL);
    return peer;
}

static void send_on_demand(const char *fabric, const char *address, int count, const char *fifo)
{
    struct endpoint e = open_endpoint(fabric, FI_WAIT_NONE);
    fi_addr_t peer = insert(&e, address);
    struct buffer buffer = { .mr = NULL };
    void *desc = description(&e, &buffer, FI_SEND);
    int demands = open(fifo, O_RDONLY);

    if (demands < 0)
        fail(fifo, -FI_ENOENT);
    puts("ready");
    for (int sent = 0; sent < count; sent++) {
        struct fi_cq_entry entry;
        char demand;
        ssize_t result;

        if (read(demands, &demand, 1) != 1)
            break;
        for (int i = 0; i < MESSAGE; i++)
            buffer.bytes[i] = content(sent, i);
        while ((result = fi_send(e.ep, buffer.bytes, MESSAGE, desc, peer, &buffer.context)) ==
               -FI_EAGAIN)
            fi_cq_read(e.cq, NULL, 0);
        check("fi_send", result);
        while ((result = fi_cq_read(e.cq, &entry, 1)) == -FI_EAGAIN)
            ;
        if (result == -FI_EAVAIL)
            fail_completion(&e);
        check("fi_cq_read", result);
    }
    close(demands);
    release(&buffer);
    close_endpoint(&e);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 4 && !strcmp(argv[1], "sleep"))
        sleep_until_messages(argv[2], atoi(argv[3]));
    else if (argc == 6 && !strcmp(argv[1], "send"))
        send_on_demand(argv[2], argv[3], atoi(argv[4]), argv[5]);
    else {
        fprintf(stderr, "usage: sleeper sleep FABRIC COUNT | send FABRIC ADDRESS COUNT FIFO\n");
        return 2;
    }
    return 0;
}
