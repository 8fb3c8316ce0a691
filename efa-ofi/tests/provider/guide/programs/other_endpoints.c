/* "Passive Endpoints", "Scalable Endpoints": what EFA does not have. */
#include "guide.h"

int main(int argc, char **argv)
{
    struct fid_ep *sep;

    (void) argc;
    begin(argv[1]);
    hints->ep_attr->type = FI_EP_MSG;
    printf("connections: %s\n", fi_strerror(-fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info)));
    hints->ep_attr->type = FI_EP_RDM;
    open_domain();
    printf("several contexts: at most %zu and %zu\n", info->domain_attr->max_ep_tx_ctx, info->domain_attr->max_ep_rx_ctx);
    printf("scalable: %s\n", fi_strerror(-fi_scalable_ep(domain, info, &sep, NULL)));
    return 0;
}
