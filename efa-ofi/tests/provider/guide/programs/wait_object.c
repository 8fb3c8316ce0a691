/* "Using Native Wait Objects: TryWait": sleeps on the descriptor of the receive queue. */
#include "guide.h"

int main(int argc, char **argv)
{
    static char data[] = "a message", buffer[64];
    struct fi_cq_msg_entry entry;
    struct fid *fid;
    struct pollfd fds = {.events = POLLIN};
    ssize_t ret;

    (void) argc;
    begin(argv[1]);
    open_domain();
    open_endpoint(FI_WAIT_FD);
    enable();
    MUST(fi_recv(ep, buffer, sizeof buffer, describe(buffer, sizeof buffer), FI_ADDR_UNSPEC, &rx_context));
    send_to_self(data, sizeof data);
    MUST(fi_control(&rx_cq->fid, FI_GETWAIT, &fds.fd));
    fid = &rx_cq->fid;
    for (;;) {
        ret = fi_trywait(fabric, &fid, 1);
        if (ret == FI_SUCCESS)
            poll(&fds, 1, -1);
        else if (ret != -FI_EAGAIN)
            MUST(ret);
        ret = fi_cq_read(rx_cq, &entry, 1);
        if (ret > 0)
            break;
        fi_cq_read(tx_cq, NULL, 0);
    }
    printf("received %zu bytes: %s\n", entry.len, buffer);
    return 0;
}
