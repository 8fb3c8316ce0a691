/* "Reading Completions": the sample of error handling, for a receive that is too short. */
#include "guide.h"

int main(int argc, char **argv)
{
    static char data[64], buffer[16];
    struct fi_cq_msg_entry entry;
    struct fi_cq_err_entry err_entry = {0};
    ssize_t ret;

    (void) argc;
    begin(argv[1]);
    open_domain();
    open_endpoint(FI_WAIT_NONE);
    enable();
    MUST(fi_recv(ep, buffer, sizeof buffer, describe(buffer, sizeof buffer), FI_ADDR_UNSPEC, &rx_context));
    send_to_self(data, sizeof data);
    ret = take(rx_cq, &entry);
    printf("fi_cq_read: %s\n", ret < 0 ? fi_strerror((int) -ret) : "an entry");
    if (ret == -FI_EAVAIL) {
        ret = fi_cq_readerr(rx_cq, &err_entry, 0);
        printf("fi_cq_readerr: %zd, %s, %zu bytes did not fit, context %d\n", ret, fi_strerror(err_entry.err),
            err_entry.olen, err_entry.op_context == &rx_context);
    }
    return 0;
}
