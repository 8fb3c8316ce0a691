// A client that uses its queues as libfabric's data path direct does: it asks libefa where they are, and if it is told,
// writes work requests, rings doorbells and reads completions itself; if not, it makes calls. It sends messages to its
// own queue pair, compares what arrives, and prints which way it took.
//
// usage: direct COUNT

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/efadv.h>
#include <infiniband/verbs.h>

// Of releases newer than the headers may be: weak, as who links with an older library has it.
struct cq_attr {
	uint64_t comp_mask;
	uint8_t *buffer;
	uint32_t entry_size;
	uint32_t num_entries;
	uint32_t *doorbell;
};
struct wq_attr {
	uint64_t comp_mask;
	uint8_t *buffer;
	uint32_t entry_size;
	uint32_t num_entries;
	uint32_t *doorbell;
	uint32_t max_batch;
	uint16_t caps;
	uint8_t reserved[2];
};
__attribute__((weak)) int efadv_query_cq(struct ibv_cq *, void *, uint32_t);
__attribute__((weak)) int efadv_query_qp_wqs(struct ibv_qp *, void *, void *, uint32_t);

enum { DEPTH = 16, LONGEST = 4096, QKEY = 0x1234 };

static struct ibv_context *context;
static struct ibv_qp *pair;
static struct ibv_cq *queue;
static struct ibv_ah *handle;
static struct ibv_mr *region;
static uint8_t *memory;
static uint16_t ahn;

static void require(int is_so, const char *what)
{
	if (is_so)
		return;
	fprintf(stderr, "direct: %s: %s\n", what, strerror(errno));
	exit(1);
}

// One of the queues, and how many entries were written or read.
struct ring {
	uint8_t *buffer;
	uint32_t entry_size, num_entries, *doorbell, counter;
};

static struct ring sends, receives, completions;

static void put(struct ring *ring, const void *entry, size_t length)
{
	memcpy(ring->buffer + (size_t)(ring->counter % ring->num_entries) * ring->entry_size, entry, length);
	ring->counter++;
	__atomic_store_n(ring->doorbell, ring->counter & 0xffff, __ATOMIC_RELEASE);
}

static int is_direct(void)
{
	struct cq_attr of_queue = {0};
	struct wq_attr of_sends = {0}, of_receives = {0};
	if (!efadv_query_cq || !efadv_query_qp_wqs || efadv_query_cq(queue, &of_queue, sizeof of_queue) ||
	    efadv_query_qp_wqs(pair, &of_sends, &of_receives, sizeof of_sends))
		return 0;
	completions = (struct ring){of_queue.buffer, of_queue.entry_size, of_queue.num_entries, of_queue.doorbell, 0};
	sends = (struct ring){of_sends.buffer, of_sends.entry_size, of_sends.num_entries, of_sends.doorbell, 0};
	receives = (struct ring){of_receives.buffer, of_receives.entry_size, of_receives.num_entries,
				 of_receives.doorbell, 0};
	return 1;
}

static void post_directly(uint8_t *from, uint8_t *to, uint32_t length)
{
	struct {
		uint64_t address;
		uint16_t request, length;
		uint32_t key;
	} receive = {(uintptr_t)to, 1, length, region->lkey | 1u << 30 | 1u << 31};
	struct {
		uint16_t request;
		uint8_t kind, control;
		uint16_t qpn, count;
		uint32_t immediate;
		uint16_t ahn, hints;
		uint32_t qkey, reserved[3];
		uint32_t length, key;
		uint64_t address;
	} send = {2, 1 << 7, 1 << 2 | 1 << 3 | 1 << 4 | (sends.counter / sends.num_entries) % 2,
		  pair->qp_num, 1, 0, ahn, 0, QKEY, {0}, length, region->lkey, (uintptr_t)from};
	put(&receives, &receive, sizeof receive);
	put(&sends, &send, sizeof send);
}

static void post_by_calls(uint8_t *from, uint8_t *to, uint32_t length)
{
	struct ibv_sge into = {(uintptr_t)to, length, region->lkey};
	struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = &into, .num_sge = 1}, *bad;
	struct ibv_qp_ex *extended = ibv_qp_to_qp_ex(pair);
	require(!ibv_post_recv(pair, &receive, &bad), "ibv_post_recv");
	ibv_wr_start(extended);
	extended->wr_id = 2;
	extended->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(extended);
	ibv_wr_set_sge(extended, region->lkey, (uintptr_t)from, length);
	ibv_wr_set_ud_addr(extended, handle, pair->qp_num, QKEY);
	errno = ibv_wr_complete(extended);
	require(!errno, "ibv_wr_complete");
}

// Waits for a completion, and returns its status.
static int completed_directly(void)
{
	const uint8_t *entry =
		completions.buffer + (size_t)(completions.counter % completions.num_entries) * completions.entry_size;
	uint64_t phase = (completions.counter / completions.num_entries) % 2 == 0, head;
	do
		head = __atomic_load_n((const uint64_t *)entry, __ATOMIC_ACQUIRE);
	while ((head >> 24 & 1) != phase);
	completions.counter++;
	return head >> 16 & 0xff;
}

static int completed_by_calls(void)
{
	struct ibv_wc completion;
	int count;
	do
		count = ibv_poll_cq(queue, 1, &completion);
	while (count == 0);
	require(count == 1, "ibv_poll_cq");
	return completion.status;
}

static void open_all(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	require(devices && devices[0] && (context = ibv_open_device(devices[0])), "ibv_open_device");
	struct ibv_pd *domain = ibv_alloc_pd(context);
	require(domain && (queue = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0)), "ibv_create_cq");
	require(!posix_memalign((void **)&memory, 4096, 2 * LONGEST), "posix_memalign");
	require((region = ibv_reg_mr(domain, memory, 2 * LONGEST, IBV_ACCESS_LOCAL_WRITE)) != NULL, "ibv_reg_mr");
	struct ibv_qp_init_attr_ex request = {
		.send_cq = queue,
		.recv_cq = queue,
		.cap = {DEPTH, DEPTH, 1, 1, 0},
		.qp_type = IBV_QPT_DRIVER,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = domain,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct efadv_qp_init_attr efa = {.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD};
	require((pair = efadv_create_qp_ex(context, &request, &efa, sizeof efa)) != NULL, "efadv_create_qp_ex");
	struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
	require(!ibv_modify_qp(pair, &attributes, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY), "INIT");
	attributes.qp_state = IBV_QPS_RTR;
	require(!ibv_modify_qp(pair, &attributes, IBV_QP_STATE), "RTR");
	attributes.qp_state = IBV_QPS_RTS;
	require(!ibv_modify_qp(pair, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1};
	require(!ibv_query_gid(context, 1, 0, &to.grh.dgid), "ibv_query_gid");
	require((handle = ibv_create_ah(domain, &to)) != NULL, "ibv_create_ah");
	struct efadv_ah_attr number;
	require(!efadv_query_ah(handle, &number, sizeof number), "efadv_query_ah");
	ahn = number.ahn;
}

int main(int count, char **arguments)
{
	int rounds = count > 1 ? atoi(arguments[1]) : 1;
	open_all();
	int direct = is_direct();
	uint8_t *from = memory, *to = memory + LONGEST;
	for (int round = 0; round < rounds; round++) {
		uint32_t length = 1 + (uint32_t)round * 37 % LONGEST;
		for (uint32_t index = 0; index < length; index++)
			from[index] = (uint8_t)(round + index * 7);
		memset(to, 0xee, LONGEST);
		(direct ? post_directly : post_by_calls)(from, to, length);
		for (int side = 0; side < 2; side++)
			require(!(direct ? completed_directly : completed_by_calls)(), "completion");
		require(!memcmp(from, to, length) && (length == LONGEST || to[length] == 0xee), "data");
	}
	printf("%d messages, %s\n", rounds, direct ? "directly" : "by calls");
	require(!ibv_destroy_qp(pair) && !ibv_destroy_ah(handle) && !ibv_destroy_cq(queue), "destroy");
	return 0;
}
