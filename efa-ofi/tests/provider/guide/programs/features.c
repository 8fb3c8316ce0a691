/* Asks for each feature, and prints one line for each: its name, the section of the guide that has
 * it, if there is one, and the answer. */
#include "guide.h"

static void answer(const char *feature, const char *section, long status)
{
    printf("%s|%s|%s\n", feature, section, status >= 0 ? "yes" : fi_strerror((int) -status));
}

/* Whether there is an info for hints that differ from the usual ones. */
static int offered(void)
{
    struct fi_info *found = NULL;
    int status = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found);

    if (status == 0)
        fi_freeinfo(found);
    return status;
}

static void ask_for_capabilities(void)
{
    static const struct {
        const char *name;
        const char *section;
        uint64_t bit;
    } all[] = {
        {"messages (`FI_MSG`)", "Message transfers", FI_MSG},
        {"tagged messages (`FI_TAGGED`)", "Tagged messages", FI_TAGGED},
        {"remote memory access (`FI_RMA`)", "RMA", FI_RMA},
        {"atomics (`FI_ATOMIC`)", "Atomic operations", FI_ATOMIC},
        {"multi-receive (`FI_MULTI_RECV`)", "Shared Receive Queues", FI_MULTI_RECV},
        {"senders' addresses (`FI_SOURCE`)", "Reading Completions", FI_SOURCE},
        {"directed receives (`FI_DIRECTED_RECV`)", "-", FI_DIRECTED_RECV},
        {"collectives (`FI_COLLECTIVE`)", "-", FI_COLLECTIVE},
        {"multicast (`FI_MULTICAST`)", "-", FI_MULTICAST},
        {"triggered operations (`FI_TRIGGER`)", "-", FI_TRIGGER},
        {"fences (`FI_FENCE`)", "-", FI_FENCE},
        {"events of remote access (`FI_RMA_EVENT`)", "-", FI_RMA_EVENT},
        {"shared address vectors (`FI_SHARED_AV`)", "Sharing AVs Between Processes", FI_SHARED_AV},
    };

    for (size_t index = 0; index < sizeof all / sizeof *all; index++) {
        hints->caps = FI_MSG | all[index].bit;
        answer(all[index].name, all[index].section, offered());
    }
    hints->caps = FI_MSG;
}

static void ask_for_endpoints(void)
{
    hints->ep_attr->type = FI_EP_MSG;
    answer("connected endpoints (`FI_EP_MSG`)", "Connected Communications", offered());
    hints->ep_attr->type = FI_EP_DGRAM;
    free(hints->fabric_attr->name);
    hints->fabric_attr->name = NULL;
    hints->mode |= FI_MSG_PREFIX;
    answer("datagrams (`FI_EP_DGRAM`)", "Endpoint Type", offered());
    hints->mode &= ~FI_MSG_PREFIX;
    hints->fabric_attr->name = strdup("efa");
    hints->ep_attr->type = FI_EP_RDM;
    answer("reliable datagrams (`FI_EP_RDM`)", "Endpoint Type", offered());
    hints->domain_attr->data_progress = FI_PROGRESS_AUTO;
    hints->domain_attr->control_progress = FI_PROGRESS_AUTO;
    answer("automatic progress", "Progress Model Considerations", offered());
    hints->domain_attr->data_progress = FI_PROGRESS_UNSPEC;
    hints->domain_attr->control_progress = FI_PROGRESS_UNSPEC;
}

int main(int argc, char **argv)
{
    struct fi_wait_attr wait_attr = {.wait_obj = FI_WAIT_FD};
    struct fi_poll_attr poll_attr = {0};
    struct fi_cq_attr cq_attr = {.wait_obj = FI_WAIT_FD};
    struct fi_cntr_attr cntr_attr = {.wait_obj = FI_WAIT_FD};
    struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_FD};
    struct fi_av_set_attr set_attr = {
        .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL, .flags = FI_UNIVERSE};
    struct fi_collective_attr collective = {.op = FI_NOOP, .datatype = FI_VOID};
    struct fid_wait *set = NULL;
    struct fid_poll *poll;
    struct fid_cq *cq;
    struct fid_cntr *cntr;
    struct fid_eq *eq;
    struct fid_ep *other;
    struct fid_stx *stx;
    struct fid_av_set *av_set;
    uint64_t flags = FI_TRANSMIT;

    (void) argc;
    begin(argv[1]);
    ask_for_capabilities();
    ask_for_endpoints();
    open_domain();
    answer("sleeping on a completion queue (`FI_WAIT_FD`)", "CQ Wait Object", fi_cq_open(domain, &cq_attr, &cq, NULL));
    answer("sleeping on a counter", "Completion Counter", fi_cntr_open(domain, &cntr_attr, &cntr, NULL));
    answer("sleeping on an event queue", "Event Queues", fi_eq_open(fabric, &eq_attr, &eq, NULL));
    answer("poll sets", "Poll Set", fi_poll_open(domain, &poll_attr, &poll));
    answer("wait sets", "Wait Sets", fi_wait_open(fabric, &wait_attr, &set));
    cq_attr = (struct fi_cq_attr) {.wait_obj = FI_WAIT_SET, .wait_set = set};
    answer("completion queues in wait sets", "Wait Sets", set ? fi_cq_open(domain, &cq_attr, &cq, NULL) : -FI_ENOSYS);
    cntr_attr = (struct fi_cntr_attr) {.wait_obj = FI_WAIT_SET, .wait_set = set};
    answer("counters in wait sets", "Wait Sets", set ? fi_cntr_open(domain, &cntr_attr, &cntr, NULL) : -FI_ENOSYS);
    eq_attr = (struct fi_eq_attr) {.wait_obj = FI_WAIT_SET, .wait_set = set};
    answer("event queues in wait sets", "Wait Sets", set ? fi_eq_open(fabric, &eq_attr, &eq, NULL) : -FI_ENOSYS);
    answer("scalable endpoints", "Scalable Endpoints", fi_scalable_ep(domain, info, &other, NULL));
    answer("shared transmit contexts", "Shared Contexts", fi_stx_context(domain, info->tx_attr, &stx, NULL));
    answer("shared receive contexts", "Shared Contexts", fi_srx_context(domain, info->rx_attr, &other, NULL));
    answer("barriers (`fi_query_collective`)", "-", fi_query_collective(domain, FI_BARRIER, &collective, 0));
    open_endpoint(FI_WAIT_NONE);
    answer("sets of addresses (`fi_av_set`)", "-", fi_av_set(av, &set_attr, &av_set, NULL));
    cntr_attr = (struct fi_cntr_attr) {.wait_obj = FI_WAIT_NONE};
    MUST(fi_cntr_open(domain, &cntr_attr, &cntr, NULL));
    answer("counters of remote writes", "Completion Counter", fi_ep_bind(ep, &cntr->fid, FI_REMOTE_WRITE));
    MUST(fi_enable(ep));
    answer("aliases of endpoints", "-", fi_ep_alias(ep, &other, FI_TRANSMIT));
    answer("flags of calls without any (`FI_GETOPSFLAG`)", "-", fi_control(&ep->fid, FI_GETOPSFLAG, &flags));
    return 0;
}
