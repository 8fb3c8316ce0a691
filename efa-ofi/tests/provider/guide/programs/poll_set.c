/* "Poll Set": which of the two queues has something. */
#include "guide.h"

int main(int argc, char **argv)
{
    static char data[] = "a message", buffer[64];
    struct fi_poll_attr attr = {0};
    struct fid_poll *pollset;
    struct fi_cq_msg_entry entry;
    void *context;
    int ret, found = 0;

    (void) argc;
    begin(argv[1]);
    open_domain();
    open_endpoint(FI_WAIT_NONE);
    enable();
    MUST(fi_poll_open(domain, &attr, &pollset));
    MUST(fi_poll_add(pollset, &tx_cq->fid, 0));
    MUST(fi_poll_add(pollset, &rx_cq->fid, 0));
    printf("at first: %d\n", fi_poll(pollset, &context, 1));
    MUST(fi_recv(ep, buffer, sizeof buffer, describe(buffer, sizeof buffer), FI_ADDR_UNSPEC, &rx_context));
    send_to_self(data, sizeof data);
    while (found != 3) {
        ret = fi_poll(pollset, &context, 1);
        MUST(ret);
        if (ret == 1) {
            struct fid_cq *cq = context == tx_name ? tx_cq : rx_cq;
            if (fi_cq_read(cq, &entry, 1) == 1)
                found |= context == tx_name ? 1 : 2;
        }
    }
    puts("both queues had an entry");
    MUST(fi_poll_del(pollset, &tx_cq->fid, 0));
    MUST(fi_poll_del(pollset, &rx_cq->fid, 0));
    MUST(fi_close(&pollset->fid));
    return 0;
}
