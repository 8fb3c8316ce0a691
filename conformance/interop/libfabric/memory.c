/*
 * Prints what an endpoint and an address take of the process's memory (resident set), over any provider of libfabric.
 *
 *   usage: memory PROVIDER [FABRIC]
 *
 * The addresses are those of an endpoint that is not there, on another host; nothing is sent to them.
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENDPOINTS = 3, PEERS = 10000, POLLS = 200 };

#define CALL(call)                                             \
    do {                                                       \
        int status = (call);                                   \
        if (status) {                                          \
            fprintf(stderr, "%s: %d\n", #call, status);        \
            exit(1);                                           \
        }                                                      \
    } while (0)

/* The resident set in KiB. */
static long resident(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long size = -1;

    while (file && fgets(line, sizeof(line), file))
        if (!strncmp(line, "VmRSS:", 6))
            size = atol(line + 6);
    if (file)
        fclose(file);
    return size;
}

int main(int argc, char **argv)
{
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .size = 8192};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = PEERS};
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *vectors[ENDPOINTS];
    struct fid_ep *endpoints[ENDPOINTS];
    struct fid_cq *queue;
    unsigned char address[64];
    size_t length = sizeof(address);
    long before;

    if (argc < 2 || !hints) {
        fprintf(stderr, "usage: memory PROVIDER [FABRIC]\n");
        return 2;
    }
    hints->fabric_attr->prov_name = strdup(argv[1]);
    hints->fabric_attr->name = argc > 2 ? strdup(argv[2]) : NULL;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    CALL(fi_getinfo(FI_VERSION(1, 11), NULL, NULL, 0, hints, &info));
    CALL(fi_fabric(info->fabric_attr, &fabric, NULL));
    CALL(fi_domain(fabric, info, &domain, NULL));
    CALL(fi_cq_open(domain, &cq_attr, &queue, NULL));
    for (int i = 0; i < ENDPOINTS; i++) {
        before = resident();
        /* Stock's endpoints share no vector. */
        CALL(fi_av_open(domain, &av_attr, &vectors[i], NULL));
        CALL(fi_endpoint(domain, info, &endpoints[i], NULL));
        CALL(fi_ep_bind(endpoints[i], &vectors[i]->fid, 0));
        CALL(fi_ep_bind(endpoints[i], &queue->fid, FI_TRANSMIT | FI_RECV));
        CALL(fi_enable(endpoints[i]));
        /* Receive buffers are posted by and by. */
        for (int n = 0; n < POLLS; n++) {
            struct fi_cq_tagged_entry entry;

            fi_cq_read(queue, &entry, 1);
        }
        printf("endpoint %d: %ld KiB\n", i + 1, resident() - before);
    }
    CALL(fi_getname(&endpoints[0]->fid, address, &length));
    /* The last byte of the GID, and then the number of the queue pair. */
    address[15] ^= 1;
    before = resident();
    for (int i = 0; i < PEERS; i++) {
        unsigned short number = 20000 + i;
        fi_addr_t inserted;

        memcpy(address + 16, &number, sizeof(number));
        CALL(fi_av_insert(vectors[0], address, 1, &inserted, 0, NULL) != 1);
    }
    printf("each of %d addresses: %.2f KiB\n", PEERS, (double) (resident() - before) / PEERS);
    return 0;
}
