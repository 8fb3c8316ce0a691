/* Makes each call that takes flags with one that no release has, and calls with sizes, numbers and
 * versions from other releases. Prints one line for each: the call, and what it returns. */
#include <rdma/fi_atomic.h>

#include "guide.h"

#define FUTURE (1ULL << 50)
#define TRY(name, call) printf("%s|%ld\n", name, (long) (call))

static uint64_t words[16];

static void try_transfers(void)
{
    struct iovec piece = {words, 8};
    struct fi_ioc element = {.addr = words, .count = 1};
    struct fi_rma_iov target = {.len = 8};
    struct fi_rma_ioc remote = {.count = 1};
    struct fi_msg message = {.msg_iov = &piece, .iov_count = 1, .addr = self};
    struct fi_msg_tagged tagged = {.msg_iov = &piece, .iov_count = 1, .addr = self};
    struct fi_msg_rma rma = {
        .msg_iov = &piece, .iov_count = 1, .addr = self, .rma_iov = &target, .rma_iov_count = 1};
    struct fi_msg_atomic atomic = {
        .msg_iov = &element, .iov_count = 1, .addr = self, .rma_iov = &remote, .rma_iov_count = 1,
        .datatype = FI_UINT64, .op = FI_SUM};

    TRY("fi_recvmsg", fi_recvmsg(ep, &message, FUTURE));
    TRY("fi_sendmsg", fi_sendmsg(ep, &message, FUTURE));
    TRY("fi_trecvmsg", fi_trecvmsg(ep, &tagged, FUTURE));
    TRY("fi_tsendmsg", fi_tsendmsg(ep, &tagged, FUTURE));
    TRY("fi_readmsg", fi_readmsg(ep, &rma, FUTURE));
    TRY("fi_writemsg", fi_writemsg(ep, &rma, FUTURE));
    TRY("fi_atomicmsg", fi_atomicmsg(ep, &atomic, FUTURE));
    TRY("fi_fetch_atomicmsg", fi_fetch_atomicmsg(ep, &atomic, &element, NULL, 1, FUTURE));
    atomic.op = FI_CSWAP;
    TRY("fi_compare_atomicmsg",
        fi_compare_atomicmsg(ep, &atomic, &element, NULL, 1, &element, NULL, 1, FUTURE));
    atomic.datatype = 99;
    TRY("fi_atomicmsg of datatype 99", fi_atomicmsg(ep, &atomic, 0));
    atomic.datatype = FI_UINT64;
    atomic.op = 99;
    TRY("fi_atomicmsg of operation 99", fi_atomicmsg(ep, &atomic, 0));
}

static void try_collectives(void)
{
    struct fi_collective_attr attr = {.op = FI_SUM, .datatype = FI_UINT64};
    struct fi_av_set_attr set_attr = {
        .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL, .flags = FI_UNIVERSE};
    struct fid_av_set *set;
    struct fid_mc *group;
    fi_addr_t all;

    MUST(fi_av_set(av, &set_attr, &set, NULL));
    MUST(fi_av_set_addr(set, &all));
    TRY("fi_join", fi_join(ep, words, FUTURE, &group, NULL));
    TRY("fi_join_collective", fi_join_collective(ep, all, set, FUTURE, &group, NULL));
    MUST(fi_join_collective(ep, all, set, 0, &group, NULL));
    progress();
    all = fi_mc_addr(group);
    TRY("fi_barrier2", fi_barrier2(ep, all, FUTURE, NULL));
    TRY("fi_broadcast", fi_broadcast(ep, words, 1, NULL, all, self, FI_UINT64, FUTURE, NULL));
    TRY("fi_alltoall", fi_alltoall(ep, words, 1, NULL, words, NULL, all, FI_UINT64, FUTURE, NULL));
    TRY("fi_allreduce",
        fi_allreduce(ep, words, 1, NULL, words, NULL, all, FI_UINT64, FI_SUM, FUTURE, NULL));
    TRY("fi_allgather", fi_allgather(ep, words, 1, NULL, words, NULL, all, FI_UINT64, FUTURE, NULL));
    TRY("fi_reduce_scatter",
        fi_reduce_scatter(ep, words, 1, NULL, words, NULL, all, FI_UINT64, FI_SUM, FUTURE, NULL));
    TRY("fi_reduce",
        fi_reduce(ep, words, 1, NULL, words, NULL, all, self, FI_UINT64, FI_SUM, FUTURE, NULL));
    TRY("fi_scatter", fi_scatter(ep, words, 1, NULL, words, NULL, all, self, FI_UINT64, FUTURE, NULL));
    TRY("fi_gather", fi_gather(ep, words, 1, NULL, words, NULL, all, self, FI_UINT64, FUTURE, NULL));
    TRY("fi_query_collective", fi_query_collective(domain, FI_ALLREDUCE, &attr, FUTURE));
    TRY("fi_query_collective of operation 99", fi_query_collective(domain, 99, &attr, 0));
}

static void try_memory(void)
{
    struct iovec piece = {words, sizeof words};
    struct fi_mr_attr attr = {.mr_iov = &piece, .iov_count = 1, .access = FI_RECV};
    struct fid_mr *mr;
    uint64_t base, key;
    uint8_t raw[8];
    size_t size = sizeof raw;

    TRY("fi_mr_reg", fi_mr_reg(domain, words, sizeof words, FI_RECV, 0, 0, FUTURE, &mr, NULL));
    TRY("fi_mr_regv", fi_mr_regv(domain, &piece, 1, FI_RECV, 0, 0, FUTURE, &mr, NULL));
    TRY("fi_mr_regattr", fi_mr_regattr(domain, &attr, FUTURE, &mr));
    attr.iface = 99;
    TRY("fi_mr_regattr of interface 99", fi_mr_regattr(domain, &attr, 0, &mr));
    MUST(fi_mr_reg(domain, words, sizeof words, FI_RECV, 0, 0, 0, &mr, NULL));
    TRY("fi_mr_bind", fi_mr_bind(mr, &ep->fid, FUTURE));
    TRY("fi_mr_refresh", fi_mr_refresh(mr, &piece, 1, FUTURE));
    TRY("fi_mr_raw_attr", fi_mr_raw_attr(mr, &base, raw, &size, FUTURE));
    TRY("fi_mr_map_raw", fi_mr_map_raw(domain, 0, raw, sizeof raw, &key, FUTURE));
    MUST(fi_close(&mr->fid));
}

static void try_vectors(void)
{
    char name[64];
    size_t length = sizeof name;
    fi_addr_t address = self;
    struct fi_av_attr attr = {.type = 99};
    struct fid_av *other;
    struct fi_eq_attr eq_attr = {0};
    struct fid_eq *eq;

    MUST(fi_eq_open(fabric, &eq_attr, &eq, NULL));
    MUST(fi_getname(&ep->fid, name, &length));
    TRY("fi_av_insert", fi_av_insert(av, name, 1, &address, FUTURE, NULL));
    TRY("fi_av_insertsvc", fi_av_insertsvc(av, "::1", "1", &address, FUTURE, NULL));
    TRY("fi_av_insertsym", fi_av_insertsym(av, "::1", 1, "1", 1, &address, FUTURE, NULL));
    TRY("fi_av_remove", fi_av_remove(av, &address, 1, FUTURE));
    TRY("fi_av_bind", fi_av_bind(av, &eq->fid, FUTURE));
    TRY("fi_domain_bind", fi_domain_bind(domain, &eq->fid, FUTURE));
    TRY("fi_av_open of type 99", fi_av_open(domain, &attr, &other, NULL));
    attr = (struct fi_av_attr) {.flags = FUTURE};
    TRY("fi_av_open with flags", fi_av_open(domain, &attr, &other, NULL));
}

static void try_queues(void)
{
    struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_FD};
    struct fi_cq_attr cq_attr = {.format = 99};
    struct fi_cntr_attr cntr_attr = {.events = 99};
    struct fi_wait_attr wait_attr = {.wait_obj = 99};
    struct fi_poll_attr poll_attr = {0};
    struct fi_eq_entry event = {.fid = &ep->fid};
    struct fi_eq_err_entry failed_event = {0};
    struct fi_cq_err_entry failed = {0};
    struct fid_wait *wait;
    struct fid_cntr *cntr;
    struct fid_poll *poll;
    struct fid_eq *eq;
    struct fid_cq *cq;
    uint32_t number;

    MUST(fi_eq_open(fabric, &eq_attr, &eq, NULL));
    MUST(fi_poll_open(domain, &poll_attr, &poll));
    TRY("fi_eq_write", fi_eq_write(eq, FI_NOTIFY, &event, sizeof event, FUTURE));
    MUST(fi_eq_write(eq, FI_NOTIFY, &event, sizeof event, 0));
    TRY("fi_eq_read", fi_eq_read(eq, &number, &event, sizeof event, FUTURE));
    TRY("fi_eq_sread", fi_eq_sread(eq, &number, &event, sizeof event, 0, FUTURE));
    TRY("fi_eq_readerr", fi_eq_readerr(eq, &failed_event, FUTURE));
    TRY("fi_cq_readerr", fi_cq_readerr(tx_cq, &failed, FUTURE));
    TRY("fi_poll_add", fi_poll_add(poll, &tx_cq->fid, FUTURE));
    TRY("fi_poll_del", fi_poll_del(poll, &tx_cq->fid, FUTURE));
    TRY("fi_eq_read of a byte", fi_eq_read(eq, &number, &event, 1, 0));
    TRY("fi_cq_open of format 99", fi_cq_open(domain, &cq_attr, &cq, NULL));
    cq_attr = (struct fi_cq_attr) {.wait_obj = 99};
    TRY("fi_cq_open of wait object 99", fi_cq_open(domain, &cq_attr, &cq, NULL));
    cq_attr = (struct fi_cq_attr) {.wait_obj = FI_WAIT_FD, .wait_cond = 99};
    TRY("fi_cq_open of condition 99", fi_cq_open(domain, &cq_attr, &cq, NULL));
    cq_attr = (struct fi_cq_attr) {.flags = FUTURE};
    TRY("fi_cq_open with flags", fi_cq_open(domain, &cq_attr, &cq, NULL));
    TRY("fi_cntr_open of events 99", fi_cntr_open(domain, &cntr_attr, &cntr, NULL));
    cntr_attr = (struct fi_cntr_attr) {.flags = FUTURE};
    TRY("fi_cntr_open with flags", fi_cntr_open(domain, &cntr_attr, &cntr, NULL));
    TRY("fi_wait_open of wait object 99", fi_wait_open(fabric, &wait_attr, &wait));
    wait_attr = (struct fi_wait_attr) {.flags = FUTURE};
    TRY("fi_wait_open with flags", fi_wait_open(fabric, &wait_attr, &wait));
    poll_attr.flags = FUTURE;
    TRY("fi_poll_open with flags", fi_poll_open(domain, &poll_attr, &poll));
    eq_attr.flags = FUTURE;
    TRY("fi_eq_open with flags", fi_eq_open(fabric, &eq_attr, &eq, NULL));
}

static void try_objects(void)
{
    struct fi_atomic_attr limits;
    struct fid_domain *other_domain;
    struct fid_ep *other;
    struct fid *alias;
    void *operations;
    struct fi_info *found;
    size_t size = 8;

    TRY("fi_alias", fi_alias(&ep->fid, &alias, FUTURE));
    TRY("fi_ep_alias", fi_ep_alias(ep, &other, FUTURE));
    TRY("fi_open_ops", fi_open_ops(&domain->fid, "operations from the future", FUTURE, &operations, NULL));
    TRY("fi_set_ops", fi_set_ops(&domain->fid, "operations from the future", FUTURE, words, NULL));
    TRY("fi_shutdown", fi_shutdown(ep, FUTURE));
    TRY("fi_query_atomic", fi_query_atomic(domain, FI_UINT64, FI_SUM, &limits, FUTURE));
    TRY("fi_query_atomic of datatype 99", fi_query_atomic(domain, 99, FI_SUM, &limits, 0));
    TRY("fi_domain2", fi_domain2(fabric, info, &other_domain, FUTURE, NULL));
    TRY("fi_endpoint2", fi_endpoint2(domain, info, &other, FUTURE, NULL));
    MUST(fi_endpoint(domain, info, &other, NULL));
    TRY("fi_ep_bind", fi_ep_bind(other, &tx_cq->fid, FI_TRANSMIT | FUTURE));
    TRY("fi_control of command 9999", fi_control(&ep->fid, 9999, words));
    TRY("fi_getopt of option 9999", fi_getopt(&ep->fid, FI_OPT_ENDPOINT, 9999, words, &size));
    TRY("fi_setopt of option 9999", fi_setopt(&ep->fid, FI_OPT_ENDPOINT, 9999, words, 8));
    TRY("fi_setopt of a byte", fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, words, 1));
    TRY("fi_getinfo of a later version", fi_getinfo(FI_VERSION(9, 9), NULL, NULL, 0, hints, &found));
    hints->caps |= FUTURE;
    TRY("fi_getinfo of a capability", fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found));
    hints->caps &= ~FUTURE;
    hints->tx_attr->op_flags = FUTURE;
    TRY("fi_getinfo of flags", fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found));
    hints->tx_attr->op_flags = 0;
    hints->domain_attr->threading = 99;
    TRY("fi_getinfo of threading 99", fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found));
}

int main(int argc, char **argv)
{
    struct fi_eq_attr eq_attr = {0};
    struct fid_eq *eq;

    (void) argc;
    begin(argv[1]);
    hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_COLLECTIVE;
    open_domain();
    open_endpoint(FI_WAIT_NONE);
    MUST(fi_eq_open(fabric, &eq_attr, &eq, NULL));
    MUST(fi_ep_bind(ep, &eq->fid, 0));
    enable();
    try_transfers();
    try_memory();
    try_vectors();
    try_queues();
    try_objects();
    try_collectives();
    return 0;
}
