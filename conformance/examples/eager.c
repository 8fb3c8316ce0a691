/* An endpoint of the EFA RDM protocol over plain verbs, driven as docs/driver.md says.
 * It sends and receives eager messages (sections 3.1 and 3.2 of the protocol), untagged and tagged,
 * with completion data, in order, expected or not, and does the handshake (section 2). All else is
 * `unsupported`. It shows how to write a driver, not how to write a fast implementation, and takes
 * the byte order of the protocol, little endian, for the machine's. Build it as README.md says. */
#define _GNU_SOURCE /* mempcpy */
#include <infiniband/efadv.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HANDSHAKE = 9, EAGER_MSGRTM = 64, EAGER_TAGRTM = 65 };             /* packet types */
enum { RAW_ADDR = 1, CQ_DATA = 2, MSG = 4, TAGGED = 8, CONNID = 0x8000 }; /* flags */
enum { DEPTH = 128, PACKET = 9216, HEADERS = 128, PEERS = 16, FI_ETRUNC = 265, WANTS_CONNID = 8 };
struct address { union ibv_gid gid; uint16_t qpn, pad; uint32_t connid; uint64_t reserved; };
struct base { uint8_t type, version; uint16_t flags; uint32_t word; }; /* msg_id, or nextra_p3 */
struct peer {
    struct address address;
    struct ibv_ah *ah;          /* NULL: the place is free */
    int ahn, number;            /* its number in the address vector, or -1 */
    uint32_t next_out, next_in; /* msg_id */
    bool was_heard, was_greeted, has_greeted, wants_connid;
};
struct message { /* that has arrived */
    struct message *next;
    struct peer *from;
    uint64_t msg_id, flags, tag, data, length;
    uint8_t *bytes;
};
struct receive { /* that was posted */
    struct receive *next;
    uint64_t id, length, tag, ignore, seed;
    int from; /* a peer's number, or -1 */
    bool is_tagged, is_compared;
};

static struct { struct ibv_pd *pd; struct ibv_cq *cq; struct ibv_qp *qp; struct ibv_mr *mr; } efa;
static struct address own;
static uint64_t mtu;
static uint8_t memory[2 * DEPTH][PACKET]; /* DEPTH places to send from, DEPTH to receive into */
static struct { uint64_t id; bool is_reported, is_busy; } sends[DEPTH];
static struct peer peers[PEERS + 1]; /* up to the first free place; the last one is never taken */
static struct message *messages; /* not received yet; those of one peer in the order of msg_id */
static struct receive *receives; /* in the order in which they were posted */
static int place, unsupported;   /* to send from next; the type of a packet not known here */
static char command[4096 + 1];   /* the present one */

#define say(...) ((void)(printf(__VA_ARGS__), putchar('\n'), fflush(stdout)))
#define reply(name) say("{\"" name "\":{}}")
#define explain(name, ...) (printf("{\"" name "\":{\"text\":\""), printf(__VA_ARGS__), say("\"}}"))
#define need(what) ((what) ? (void)0 : (explain("refused", "%s failed", #what), exit(1)))

/* The value of a key in the present command, the innermost one, or NULL. */
static const char *value(const char *key) {
    char wanted[32];
    const char *at = command, *found = NULL;
    for (snprintf(wanted, sizeof wanted, "\"%s\":", key); (at = strstr(at, wanted)); found = at)
        at += strlen(wanted);
    return found;
}
static uint64_t number(const char *key) { return value(key) ? strtoull(value(key), NULL, 10) : 0; }

/* Whether the command has this key, and none but these: others must not be ignored. */
static bool is(const char *name, const char *keys) {
    const char *at = command, *hints = strstr(command, "\"hints\":");
    for (char key[64]; (at = strchr(at, '"')) && at != hints;) {
        at += snprintf(key, sizeof key, " %.*s ", (int)strcspn(at + 1, "\""), at + 1);
        if (*at == ':' && !strstr(keys, key))
            return false;
    }
    return value(name);
}

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}
static uint8_t byte(uint64_t seed, size_t i) { return mix(mix(seed) + i / 8) >> i % 8 * 8; }

static void post_receive(int place) {
    struct ibv_sge piece = { (uintptr_t)memory[place], PACKET, efa.mr->lkey };
    struct ibv_recv_wr request = { .wr_id = place, .sg_list = &piece, .num_sge = 1 }, *bad;
    need(!ibv_post_recv(efa.qp, &request, &bad));
}

/* Opens a queue pair on the first EFA device. */
static void open_endpoint(void) {
    struct ibv_context *context = NULL;
    struct efadv_device_attr attr;
    struct ibv_port_attr port;
    struct ibv_device **list = ibv_get_device_list(NULL), **at = list;
    for (; at && *at; at++)
        if ((context = ibv_open_device(*at)) && !efadv_query_device(context, &attr, sizeof attr))
            break;
    need(at && *at && !ibv_query_gid(context, 1, 0, &own.gid));
    need(!ibv_query_port(context, 1, &port)), ibv_free_device_list(list);
    need(efa.pd = ibv_alloc_pd(context));
    need(efa.mr = ibv_reg_mr(efa.pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
    need(efa.cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0));
    struct ibv_qp_init_attr wanted = { .send_cq = efa.cq, .recv_cq = efa.cq,
        .cap = { DEPTH, DEPTH, 1, 1, 0 }, .qp_type = IBV_QPT_DRIVER };
    need(efa.qp = efadv_create_driver_qp(efa.pd, &wanted, EFADV_QP_DRIVER_TYPE_SRD));
    mtu = port.max_msg_sz < PACKET ? port.max_msg_sz : PACKET;
    own.qpn = efa.qp->qp_num, own.connid = mix((uintptr_t)efa.qp); /* which is the Q-key as well */
    struct ibv_qp_attr state = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = own.connid };
    int masks[] = { IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0, IBV_QP_SQ_PSN };
    for (int i = 0; i < 3; i++, state.qp_state++)
        need(!ibv_modify_qp(efa.qp, &state, IBV_QP_STATE | masks[i]));
    for (int i = DEPTH; i < 2 * DEPTH; i++)
        post_receive(i);
    printf("{\"opened\":{\"address\":\"");
    for (size_t i = 0; i < sizeof own; i++)
        printf("%02x", ((uint8_t *)&own)[i]);
    say("\"}}");
}

/* The peer of an address, made if there is none yet. */
static struct peer *peer_of(const struct address *address) {
    struct peer *peer = peers;
    for (; peer->ah; peer++)
        if (!memcmp(&peer->address, address, sizeof *address - sizeof address->reserved))
            return peer;
    struct ibv_ah_attr wanted = { .is_global = 1, .port_num = 1, .grh.dgid = address->gid };
    struct efadv_ah_attr made = { 0 };
    need(peer < peers + PEERS && (peer->ah = ibv_create_ah(efa.pd, &wanted)));
    need(!efadv_query_ah(peer->ah, &made, sizeof made));
    peer->ahn = made.ahn, peer->address = *address, peer->number = -1;
    return peer;
}

/* Sends what is at `place` up to `end`; false if the device takes no more. */
static bool post_send(const uint8_t *end, const struct peer *to, bool is_reported) {
    struct ibv_sge piece = { (uintptr_t)memory[place], end - memory[place], efa.mr->lkey };
    struct ibv_send_wr request = { .wr_id = place, .sg_list = &piece, .num_sge = 1,
        .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
        .wr.ud = { to->ah, to->address.qpn, to->address.connid } }, *bad;
    if (ibv_post_send(efa.qp, &request, &bad))
        return false;
    sends[place].id = number("id"), sends[place].is_reported = is_reported;
    sends[place].is_busy = true, place = (place + 1) % DEPTH;
    return true;
}

static void send_handshake(struct peer *peer) {
    struct base base = { HANDSHAKE, 4, CONNID, 3 + 1 /* word of extra_info */ };
    uint64_t wishes = WANTS_CONNID /* an extra request */, connid = own.connid;
    uint8_t *end = mempcpy(mempcpy(memory[place], &base, sizeof base), &wishes, sizeof wishes);
    peer->has_greeted = post_send(mempcpy(end, &connid, sizeof connid), peer, false);
}

static void send_message(void) {
    struct peer *peer = peers;
    while (peer->ah && peer->number != (int)number("to"))
        peer++;
    bool is_injected = value("mode") && !strncmp(value("mode"), "\"inject", 7);
    uint64_t tag = number("tag"), data = number("data"), length = number("length");
    const uint32_t size = sizeof own;
    if ((value("mode") && !is_injected) || length + HEADERS > mtu)
        return explain("unsupported", value("mode") ? "delivery complete" : "long messages");
    if (!peer->ah || sends[place].is_busy)
        return peer->ah ? reply("again") : explain("refused", "not inserted");
    struct base base = { value("tag") ? EAGER_TAGRTM : EAGER_MSGRTM, 4, MSG, peer->next_out };
    uint8_t *end = memory[place] + sizeof base;
    if (value("tag"))
        base.flags |= TAGGED, end = mempcpy(end, &tag, sizeof tag);
    if (!peer->was_greeted)
        base.flags |= RAW_ADDR, end = mempcpy(mempcpy(end, &size, sizeof size), &own, sizeof own);
    if (value("data"))
        base.flags |= CQ_DATA, end = mempcpy(end, &data, sizeof data);
    if (peer->wants_connid)
        base.flags |= CONNID, end = mempcpy(end, &own.connid, sizeof own.connid);
    memcpy(memory[place], &base, sizeof base);
    for (uint64_t i = 0; i < length; i++)
        *end++ = byte(number("seed"), i);
    bool is_sent = post_send(end, peer, !is_injected);
    is_sent ? peer->next_out++, reply("started") : reply("again");
}

/* Handles a packet. Headers are read to their end before the length is checked: there is room. */
static void handle(const uint8_t *packet, uint64_t length, int ahn, uint32_t qpn) {
    struct base base;
    struct address address = { 0 };
    struct peer *peer = peers;
    struct message head = { 0 }, *message, **link = &messages;
    uint64_t extra_info = 0, size = 0;
    const uint8_t *at = packet + sizeof base;
    memcpy(&base, packet, sizeof base);
    if (base.type == HANDSHAKE) /* its flags are others */
        memcpy(&extra_info, at, sizeof extra_info), base.flags = 0;
    else if (base.type != EAGER_MSGRTM && base.type != EAGER_TAGRTM)
        unsupported = base.type;
    if (base.type == EAGER_TAGRTM)
        memcpy(&head.tag, at, 8), at += 8;
    if (base.flags & RAW_ADDR)
        memcpy(&size, at, 4), memcpy(&address, at + 4, sizeof address), at += 4 + size % HEADERS;
    if (base.flags & CQ_DATA)
        memcpy(&head.data, at, 8), at += 8;
    at += base.flags & CONNID ? 4 : 0;
    while (peer->ah && (peer->ahn != ahn || peer->address.qpn != qpn))
        peer++;
    peer = peer->ah || !size ? peer : peer_of(&address);
    if (!peer->ah || packet + length < at || unsupported)
        return;
    peer->was_heard = true, peer->was_greeted |= base.type == HANDSHAKE;
    peer->wants_connid |= !!(extra_info & WANTS_CONNID);
    if (base.type == HANDSHAKE)
        return;
    head.from = peer, head.msg_id = base.word, head.flags = base.flags;
    head.length = packet + length - at;
    message = memcpy(malloc(sizeof head), &head, sizeof head);
    message->bytes = memcpy(malloc(head.length + 1), at, head.length);
    while (*link && ((*link)->from != peer || (*link)->msg_id < message->msg_id))
        link = &(*link)->next;
    message->next = *link, *link = message;
    for (message = messages; message; message = message->next) /* which are in order now */
        peer->next_in += message->from == peer && message->msg_id == peer->next_in;
}

static void complete(struct receive *receive, struct message *message) {
    uint64_t fits = message->length < receive->length ? message->length : receive->length;
    uint64_t at = receive->is_compared ? 0 : fits;
    while (at < fits && message->bytes[at] == byte(receive->seed, at))
        at++;
    printf("{\"completed\":{\"id\":%lu,\"length\":%lu,", receive->id, fits);
    printf("\"tag\":%lu", message->tag);
    if (message->flags & CQ_DATA)
        printf(",\"data\":%lu", message->data);
    if (message->from->number >= 0)
        printf(",\"source\":%d", message->from->number);
    if (at < fits)
        printf(",\"difference\":{\"position\":%lu,\"actual\":%d,\"expected\":%d}", at,
               message->bytes[at], byte(receive->seed, at));
    if (fits < message->length)
        printf(",\"failure\":{\"code\":%d,\"overflow\":%lu}", FI_ETRUNC, message->length - fits);
    say("}}");
}

static void progress(void) {
    struct ibv_wc wc;
    while (ibv_poll_cq(efa.cq, 1, &wc) > 0)
        if (wc.status)
            explain("reported", "a packet was lost: %s", ibv_wc_status_str(wc.status));
        else if (wc.wr_id >= DEPTH)
            handle(memory[wc.wr_id], wc.byte_len, wc.slid, wc.src_qp), post_receive(wc.wr_id);
        else if (sends[wc.wr_id].is_busy = false, sends[wc.wr_id].is_reported)
            say("{\"completed\":{\"id\":%lu,\"length\":0}}", sends[wc.wr_id].id);
    for (struct peer *peer = peers; peer->ah; peer++)
        if (peer->was_heard && !peer->has_greeted && !sends[place].is_busy) /* or next time */
            send_handshake(peer);
    /* Receives complete with the messages that they match, both in their order. */
    for (struct message **from = &messages, *message; (message = *from);) {
        struct receive **to = &receives, *receive;
        while ((receive = *to) && (receive->is_tagged != !!(message->flags & TAGGED) ||
                                   (receive->from >= 0 && receive->from != message->from->number) ||
                                   (receive->tag ^ message->tag) & ~receive->ignore))
            to = &receive->next;
        if (receive && message->msg_id < message->from->next_in) {
            complete(receive, message), *to = receive->next, *from = message->next;
            free(receive), free(message->bytes), free(message);
        } else
            from = &message->next;
    }
}

int main(void) {
    while (fgets(command, sizeof command, stdin))
        if (is("hello", " hello version "))
            say("{\"hello\":{\"version\":2,\"software\":{\"name\":\"eager.c\"}}}");
        else if (is("open", " open api capabilities "))
            open_endpoint();
        else if (is("insert", " insert peer address ")) {
            struct address address;
            for (size_t i = 0; i < sizeof address; i++)
                sscanf(value("address") + 1 + 2 * i, "%2hhx", (uint8_t *)&address + i);
            peer_of(&address)->number = number("peer");
            reply("done");
        } else if (is("recv", " start id operation recv length from tag ignore expect ")) {
            struct receive **last = &receives, receive = { .id = number("id"),
                .length = number("length"), .from = value("from") ? (int)number("from") : -1,
                .tag = number("tag"), .ignore = number("ignore"), .seed = number("expect"),
                .is_tagged = value("tag"), .is_compared = value("expect") };
            while (*last)
                last = &(*last)->next;
            *last = memcpy(malloc(sizeof receive), &receive, sizeof receive);
            reply("started");
        } else if (is("send", " start id operation send to payload length seed tag data mode "))
            send_message();
        else if (is("poll", " poll ")) {
            progress();
            unsupported ? explain("unsupported", "packets of type %d", unsupported) : reply("done");
        } else {
            while (strpbrk(command, "\"\n"))
                *strpbrk(command, "\"\n") = ' '; /* so that it can be quoted */
            explain("unsupported", "%s", command);
        }
}
