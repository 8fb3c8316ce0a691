// A client that uses its queues as libfabric's data path direct does: it asks libefa where they are, and if it is told,
// writes work requests, rings doorbells and reads completions itself; if not, it makes calls. It sends messages to its
// own queue pair, compares what arrives, and prints which way it took.
//
// usage: direct COUNT
//        direct SECONDS queues|calls first|second
//
// With more words it exchanges messages of 64 bytes with another process instead, one at a time, in the way that is named.
// Each writes its address on standard output and reads the other's from standard input. The first prints how many
// messages there were, and the time of one way: the mean, the median and the 99th hundredth, in microseconds.

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

enum { DEPTH = 16, LONGEST = 4096, QKEY = 0x1234, MESSAGE = 64 };
enum { RECEIVE = 1, SEND = 2 };

static struct ibv_context *context;
static struct ibv_qp *pair;
static struct ibv_cq *queue;
static struct ibv_ah *handle;
static struct ibv_mr *region;
static uint8_t *memory;
static union ibv_gid gid;
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

static void receive_directly(uint8_t *to, uint32_t length)
{
	struct {
		uint64_t address;
		uint16_t request, length;
		uint32_t key;
	} receive = {(uintptr_t)to, RECEIVE, length, region->lkey | 1u << 30 | 1u << 31};
	put(&receives, &receive, sizeof receive);
}

static void send_directly(uint8_t *from, uint32_t qpn, uint32_t length)
{
	struct {
		uint16_t request;
		uint8_t kind, control;
		uint16_t qpn, count;
		uint32_t immediate;
		uint16_t ahn, hints;
		uint32_t qkey, reserved[3];
		uint32_t length, key;
		uint64_t address;
	} send = {SEND, 1 << 7, 1 << 2 | 1 << 3 | 1 << 4 | (sends.counter / sends.num_entries) % 2,
		  (uint16_t)qpn, 1, 0, ahn, 0, QKEY, {0}, length, region->lkey, (uintptr_t)from};
	put(&sends, &send, sizeof send);
}

static void receive_by_calls(uint8_t *to, uint32_t length)
{
	struct ibv_sge into = {(uintptr_t)to, length, region->lkey};
	struct ibv_recv_wr receive = {.wr_id = RECEIVE, .sg_list = &into, .num_sge = 1}, *bad;
	require(!ibv_post_recv(pair, &receive, &bad), "ibv_post_recv");
}

static void send_by_calls(uint8_t *from, uint32_t qpn, uint32_t length)
{
	struct ibv_qp_ex *extended = ibv_qp_to_qp_ex(pair);
	ibv_wr_start(extended);
	extended->wr_id = SEND;
	extended->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(extended);
	ibv_wr_set_sge(extended, region->lkey, (uintptr_t)from, length);
	ibv_wr_set_ud_addr(extended, handle, qpn, QKEY);
	errno = ibv_wr_complete(extended);
	require(!errno, "ibv_wr_complete");
}

// Waits for a completion, and returns the id of its request. It has to be a success.
static int completed_directly(void)
{
	const uint8_t *entry =
		completions.buffer + (size_t)(completions.counter % completions.num_entries) * completions.entry_size;
	uint64_t phase = (completions.counter / completions.num_entries) % 2 == 0, head;
	do
		head = __atomic_load_n((const uint64_t *)entry, __ATOMIC_ACQUIRE);
	while ((head >> 24 & 1) != phase);
	completions.counter++;
	require(!(head >> 16 & 0xff), "completion");
	return head & 0xffff;
}

static int completed_by_calls(void)
{
	struct ibv_wc completion;
	int count;
	do
		count = ibv_poll_cq(queue, 1, &completion);
	while (count == 0);
	require(count == 1, "ibv_poll_cq");
	require(!completion.status, "completion");
	return (int)completion.wr_id;
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
	require(!ibv_query_gid(context, 1, 0, &gid), "ibv_query_gid");
}

static void find(struct ibv_ah_attr to)
{
	require((handle = ibv_create_ah(pair->pd, &to)) != NULL, "ibv_create_ah");
	struct efadv_ah_attr number;
	require(!efadv_query_ah(handle, &number, sizeof number), "efadv_query_ah");
	ahn = number.ahn;
}

static void talk_to_itself(int rounds, int direct)
{
	uint8_t *from = memory, *to = memory + LONGEST;
	find((struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh.dgid = gid});
	for (int round = 0; round < rounds; round++) {
		uint32_t length = 1 + (uint32_t)round * 37 % LONGEST;
		for (uint32_t index = 0; index < length; index++)
			from[index] = (uint8_t)(round + index * 7);
		memset(to, 0xee, LONGEST);
		(direct ? receive_directly : receive_by_calls)(to, length);
		(direct ? send_directly : send_by_calls)(from, pair->qp_num, length);
		for (int side = 0; side < 2; side++)
			(direct ? completed_directly : completed_by_calls)();
		require(!memcmp(from, to, length) && (length == LONGEST || to[length] == 0xee), "data");
	}
	printf("%d messages, %s\n", rounds, direct ? "directly" : "by calls");
}

static uint64_t nanoseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int by_size(const void *one, const void *other)
{
	uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
	return (a > b) - (a < b);
}

static void receive_message(uint32_t number, int direct)
{
	(direct ? receive_directly : receive_by_calls)(memory + LONGEST + number % DEPTH * MESSAGE, MESSAGE);
}

// Waits for a message. Each has its number, and says whether it is the last.
static int received(uint32_t number, int *unsent, int direct)
{
	while ((direct ? completed_directly : completed_by_calls)() == SEND)
		--*unsent;
	uint32_t *message = (uint32_t *)(memory + LONGEST + number % DEPTH * MESSAGE);
	require(message[0] == number && message[MESSAGE / 4 - 1] == ~number, "data");
	return (int)message[1];
}

static void send_message(uint32_t number, uint32_t qpn, int is_last, int *unsent, int direct)
{
	uint32_t *message = (uint32_t *)(memory + number % DEPTH * MESSAGE);
	message[0] = number;
	message[1] = (uint32_t)is_last;
	message[MESSAGE / 4 - 1] = ~number;
	require(++*unsent < DEPTH, "completions of sends");
	(direct ? send_directly : send_by_calls)((uint8_t *)message, qpn, MESSAGE);
}

static void talk_to_another(double seconds, int direct, int is_first)
{
	enum { MOST = 1 << 24 };
	uint32_t qpn, number = 0, *times = malloc(MOST * sizeof *times);
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1};
	require(times != NULL, "malloc");
	for (; number < DEPTH; number++)
		receive_message(number, direct);
	for (int index = 0; index < 16; index++)
		printf("%02x", gid.raw[index]);
	printf(" %u\n", pair->qp_num);
	fflush(stdout);
	for (int index = 0; index < 16; index++)
		require(scanf("%2hhx", &to.grh.dgid.raw[index]) == 1, "the other's address");
	require(scanf("%u", &qpn) == 1, "the other's address");
	find(to);
	int unsent = 0, is_last = 0;
	uint64_t begin = nanoseconds(), before = begin, now;
	for (number = 0; !is_last; number++) {
		if (is_first) {
			is_last = (double)(before - begin) > seconds * 1e9 || number == MOST - 1;
			send_message(number, qpn, is_last, &unsent, direct);
			received(number, &unsent, direct);
			now = nanoseconds();
			times[number] = (uint32_t)((now - before) / 2);
			before = now;
		} else {
			is_last = received(number, &unsent, direct);
			send_message(number, qpn, is_last, &unsent, direct);
		}
		receive_message(number, direct);
	}
	while (unsent > 0 && (direct ? completed_directly : completed_by_calls)() == SEND)
		unsent--;
	if (!is_first)
		return;
	qsort(times, number, sizeof *times, by_size);
	printf("%u messages, %s, us: mean %.2f median %.2f 99 %% %.2f\n", number, direct ? "directly" : "by calls",
	       (double)(before - begin) / 2e3 / number, times[number / 2] / 1e3, times[(uint64_t)number * 99 / 100] / 1e3);
}

int main(int count, char **arguments)
{
	const char *seconds = count > 1 ? arguments[1] : "1";
	open_all();
	if (count > 3) {
		int direct = !strcmp(arguments[2], "queues");
		require(!direct || is_direct(), "the addresses of the queues");
		talk_to_another(atof(seconds), direct, !strcmp(arguments[3], "first"));
	} else {
		talk_to_itself(atoi(seconds), is_direct());
	}
	require(!ibv_destroy_qp(pair) && !ibv_destroy_ah(handle) && !ibv_destroy_cq(queue), "destroy");
	return 0;
}
