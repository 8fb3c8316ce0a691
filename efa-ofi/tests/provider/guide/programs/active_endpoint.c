/* "Active Endpoints", "Completion Queues": two queues, a message, and its two completions. */
#include "guide.h"

int main(int argc, char **argv)
{
    static char data[] = "a message", buffer[64];
    struct fi_cq_msg_entry entry;

    (void) argc;
    begin(argv[1]);
    open_domain();
    open_endpoint(FI_WAIT_NONE);
    enable();
    MUST(fi_recv(ep, buffer, sizeof buffer, describe(buffer, sizeof buffer), FI_ADDR_UNSPEC, &rx_context));
    send_to_self(data, sizeof data);
    MUST(take(tx_cq, &entry));
    printf("sent: %d, context %d\n", (entry.flags & FI_SEND) != 0, entry.op_context == &tx_context);
    MUST(take(rx_cq, &entry));
    printf("received %zu bytes: %s, context %d\n", entry.len, buffer, entry.op_context == &rx_context);
    MUST(fi_close(&ep->fid));
    MUST(fi_close(&tx_cq->fid));
    MUST(fi_close(&rx_cq->fid));
    MUST(fi_close(&av->fid));
    puts("closed");
    return 0;
}
