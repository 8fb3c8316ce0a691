/*
 * Injects tagged messages and closes the endpoint, and prints how many arrive at another process.
 *
 *   usage: inject COUNT LATE POLL
 *
 * The receiver is not ready before it has looked at its completion queue. It does so before the sender knows its address,
 * or, unless LATE is 0, LATE ms later. The sender looks at its own queue for POLL ms before it closes.
 */
#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MESSAGE = 32, MOST = 256, PATIENCE = 2000 };

#define CALL(call)                                                                      \
    do {                                                                                \
        ssize_t status = (call);                                                        \
        if (status < 0) {                                                               \
            fprintf(stderr, "inject: %s: %s\n", #call, fi_strerror((int) -status));     \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

/* Reads completions for some milliseconds, or until there were `count`. */
static int look(struct fid_cq *cq, int count, int duration)
{
    struct fi_cq_tagged_entry entry;
    int seen = 0;

    for (int ms = 0; ms < duration && seen < count; ms++, usleep(1000))
        while (fi_cq_read(cq, &entry, 1) == 1)
            seen++;
    return seen;
}

int main(int argc, char **argv)
{
    int count = argc == 4 ? atoi(argv[1]) : 0, late = count ? atoi(argv[2]) : 0, arrived, pipes[2], sends;
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    static struct fi_context2 contexts[MOST];
    static char buffers[MOST][MESSAGE], address[64];
    size_t length = sizeof(address);
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    fi_addr_t peer;

    if (count < 1 || count > MOST || pipe(pipes) || !hints) {
        fprintf(stderr, "usage: inject COUNT LATE POLL, with COUNT up to %d\n", MOST);
        return 2;
    }
    sends = !fork();
    hints->fabric_attr->prov_name = strdup("efa");
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_TAGGED;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    CALL(fi_getinfo(FI_VERSION(1, 11), NULL, NULL, 0, hints, &info));
    CALL(fi_fabric(info->fabric_attr, &fabric, NULL));
    CALL(fi_domain(fabric, info, &domain, NULL));
    CALL(fi_cq_open(domain, &cq_attr, &cq, NULL));
    CALL(fi_av_open(domain, &av_attr, &av, NULL));
    CALL(fi_endpoint(domain, info, &ep, NULL));
    CALL(fi_ep_bind(ep, &av->fid, 0));
    CALL(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    CALL(fi_enable(ep));
    if (sends) {
        CALL(read(pipes[0], address, sizeof(address)));
        CALL(fi_av_insert(av, address, 1, &peer, 0, NULL));
        for (int i = 0; i < count; i++)
            CALL(fi_tinject(ep, buffers[i], MESSAGE, peer, i));
        look(cq, 1, atoi(argv[3]));
        CALL(fi_close(&ep->fid));
        return 0;
    }
    look(cq, 1, late ? 0 : 1);
    CALL(fi_getname(&ep->fid, address, &length));
    CALL(write(pipes[1], address, sizeof(address)));
    usleep(1000 * late);
    for (int i = 0; i < count; i++)
        CALL(fi_trecv(ep, buffers[i], MESSAGE, NULL, FI_ADDR_UNSPEC, i, 0, &contexts[i]));
    arrived = look(cq, count, PATIENCE);
    printf("%d of %d arrived\n", arrived, count);
    return arrived < count;
}
