/* "Counters": one of what the endpoint has sent, written and read. */
#include "guide.h"

int main(int argc, char **argv)
{
    static char data[8], buffer[8];
    struct fi_cntr_attr cntr_attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC};
    struct fid_cntr *cntr;

    (void) argc;
    begin(argv[1]);
    open_domain();
    open_endpoint(FI_WAIT_NONE);
    MUST(fi_cntr_open(domain, &cntr_attr, &cntr, NULL));
    MUST(fi_ep_bind(ep, &cntr->fid, FI_SEND | FI_WRITE | FI_READ));
    enable();
    for (int sent = 0; sent < 3; sent++) {
        MUST(fi_recv(ep, buffer, sizeof buffer, describe(buffer, sizeof buffer), FI_ADDR_UNSPEC, &rx_context));
        send_to_self(data, sizeof data);
        while (fi_cntr_read(cntr) == (uint64_t) sent)
            progress();
        printf("counted %d, errors %d\n", (int) fi_cntr_read(cntr), (int) fi_cntr_readerr(cntr));
    }
    MUST(fi_cntr_add(cntr, 10));
    printf("added: %d\n", (int) fi_cntr_read(cntr));
    return 0;
}
