/* What the examples have in common: an endpoint that talks to itself, as the guide opens one. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

static struct fi_info *hints, *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *tx_cq, *rx_cq;
static struct fid_ep *ep;
static fi_addr_t self;
/* Context of completion queues and of operations. */
static char tx_name[] = "transmit queue", rx_name[] = "receive queue";
static struct fi_context2 tx_context, rx_context;

/* Ends the program if a call failed. */
static void must(const char *what, long status)
{
    if (status >= 0)
        return;
    printf("%s: %s\n", what, fi_strerror((int) -status));
    exit(1);
}
#define MUST(call) must(#call, call)

/* Hints for a provider; programs add to them. */
static void begin(const char *provider)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    hints = fi_allocinfo();
    hints->fabric_attr->prov_name = strdup(provider);
    hints->fabric_attr->name = strdup("efa");
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
}

static void open_domain(void)
{
    MUST(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    MUST(fi_fabric(info->fabric_attr, &fabric, NULL));
    MUST(fi_domain(fabric, info, &domain, NULL));
}

/* An active endpoint with a queue for each direction, which is enabled later. */
static void open_endpoint(enum fi_wait_obj wait_obj)
{
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG, .wait_obj = wait_obj};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};

    MUST(fi_endpoint(domain, info, &ep, NULL));
    MUST(fi_av_open(domain, &av_attr, &av, NULL));
    MUST(fi_ep_bind(ep, &av->fid, 0));
    MUST(fi_cq_open(domain, &cq_attr, &tx_cq, tx_name));
    MUST(fi_ep_bind(ep, &tx_cq->fid, FI_TRANSMIT));
    MUST(fi_cq_open(domain, &cq_attr, &rx_cq, rx_name));
    MUST(fi_ep_bind(ep, &rx_cq->fid, FI_RECV));
}

static void enable(void)
{
    char name[64];
    size_t length = sizeof name;

    MUST(fi_enable(ep));
    MUST(fi_getname(&ep->fid, name, &length));
    if (fi_av_insert(av, name, 1, &self, 0, NULL) != 1)
        must("fi_av_insert", -FI_EINVAL);
}

/* Memory that is registered if that has to be. */
static void *describe(void *memory, size_t length)
{
    struct fid_mr *mr;

    if (!(info->domain_attr->mr_mode & FI_MR_LOCAL))
        return NULL;
    MUST(fi_mr_reg(domain, memory, length, FI_SEND | FI_RECV, 0, 0, 0, &mr, NULL));
    return fi_mr_desc(mr);
}

/* Makes progress on both queues: a message to itself needs both. */
static void progress(void)
{
    fi_cq_read(tx_cq, NULL, 0);
    fi_cq_read(rx_cq, NULL, 0);
}

static void send_to_self(const void *data, size_t length)
{
    ssize_t status;

    while ((status = fi_send(ep, data, length, describe((void *) data, length), self, &tx_context)) == -FI_EAGAIN)
        progress();
    MUST(status);
}

/* Waits for an entry. Returns what fi_cq_read does. */
static ssize_t take(struct fid_cq *cq, struct fi_cq_msg_entry *entry)
{
    ssize_t status;

    while ((status = fi_cq_read(cq, entry, 1)) == -FI_EAGAIN)
        progress();
    return status;
}
