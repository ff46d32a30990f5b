/* An engine that costs nothing: answers every request at once, or streams chunks at a fixed pace until its client
 * leaves. One thread, epoll. Usage: stub PORT CHUNK_MS REPLY_BYTES
 *
 * A request whose body holds "stream":true gets events; any other gets one JSON document with its `usage` at the end,
 * as engines have it. Streams are dealt out over the milliseconds of CHUNK_MS, so that they do not all speak at once. */
#include "net.h"
#include <sys/timerfd.h>

#define SLOTS 256
#define HEAD_MAX 65536
#define BUSY 3 /* requests within the last millisecond: it looks for more by itself */

struct conn {
    int fd, slot, in_slot, used, streams;
    long body_left; /* of the present request; -1: its head is not whole */
    struct conn *next, *prev;
    char *head;
};

static struct conn slots[SLOTS]; /* heads of rings */
static int period, turn, dealt, ep, busy, asked;
#define VARIANTS 16
static char *replies[VARIANTS], event[512];
static int reply_sizes[VARIANTS], event_size, ticks;
static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

static void unlink_conn(struct conn *c) {
    if (!c->in_slot) return;
    c->prev->next = c->next;
    c->next->prev = c->prev;
    c->in_slot = 0;
}

static void drop(struct conn *c) {
    unlink_conn(c);
    close(c->fd);
    free(c->head);
    free(c);
}

/* Answers differ in length, and their head names the time, as those of real engines do. */
static void prepare(int size) {
    static const char begin[] = "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"choices\":[{\"index\":0,"
                                "\"message\":{\"role\":\"assistant\",\"content\":\"";
    static const char end[] = "\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":12,"
                              "\"completion_tokens\":34,\"total_tokens\":46}}";
    char date[64];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime(&now));
    for (int i = 0; i < VARIANTS; i++) {
        int fill = size - (int)sizeof begin - (int)sizeof end + 2;
        fill = (fill < 1 ? 1 : fill) + i;
        int body = (int)sizeof begin - 1 + fill + (int)sizeof end - 1;
        free(replies[i]);
        replies[i] = malloc((size_t)body + 256);
        int n = sprintf(replies[i], "HTTP/1.1 200 OK\r\ndate: %s\r\nserver: stub\r\ncontent-type: application/json\r\n"
                                    "content-length: %d\r\n\r\n%s", date, body, begin);
        memset(replies[i] + n, 'x', (size_t)fill);
        n += fill;
        reply_sizes[i] = n + sprintf(replies[i] + n, "%s", end);
    }
    char data[400];
    int size_of = sprintf(data, "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,"
                                "\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},"
                                "\"finish_reason\":null}]}\n\n");
    event_size = sprintf(event, "%x\r\n%s\r\n", size_of, data);
}

static void answer(struct conn *c) {
    c->used = 0;
    c->body_left = -1;
    asked++;
    if (!c->streams) {
        static unsigned which;
        int size = reply_sizes[++which % VARIANTS];
        if (write(c->fd, replies[which % VARIANTS], (size_t)size) != size) drop(c);
        return;
    }
    struct conn *ring = &slots[c->slot = dealt++ % period];
    c->next = ring;
    c->prev = ring->prev;
    ring->prev->next = c;
    ring->prev = c;
    c->in_slot = 1;
    if (write(c->fd, STREAM_HEAD, sizeof STREAM_HEAD - 1) < 0) drop(c);
}

/* Bytes of a request: its head is kept until it is whole, its body is only counted, and its beginning looked at. */
static void got(struct conn *c, char *data, long size) {
    if (c->body_left < 0) {
        long kept = size < HEAD_MAX - 1 - c->used ? size : HEAD_MAX - 1 - c->used; /* what stands behind is body */
        memcpy(c->head + c->used, data, (size_t)kept);
        c->used += (int)kept;
        c->head[c->used] = 0;
        char *end = strstr(c->head, "\r\n\r\n");
        if (!end && kept < size) drop(c);
        if (!end) return;
        char *length = strcasestr(c->head, "\r\ncontent-length:");
        long body = length && length < end ? atol(length + 17) : 0;
        c->streams = strstr(end, "\"stream\":true") != NULL;
        c->body_left = body - (c->used + size - kept - (end + 4 - c->head));
    } else {
        if (c->body_left < 4096 && memmem(data, (size_t)size, "\"stream\":true", 13)) c->streams = 1;
        c->body_left -= size;
    }
    if (c->body_left <= 0) answer(c);
}

static void tick(void) {
    struct conn *ring = &slots[turn++ % period], *next;
    for (struct conn *c = ring->next; c != ring; c = next) {
        next = c->next;
        if (write(c->fd, event, (size_t)event_size) != event_size) drop(c);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    raise_limit();
    precise_naps();
    period = atoi(argv[2]);
    if (period < 1 || period > SLOTS) return 2;
    prepare(atoi(argv[3]));
    for (int i = 0; i < SLOTS; i++) slots[i].next = slots[i].prev = &slots[i];
    int listener = listen_on(atoi(argv[1])), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct itimerspec each = {{0, 1000000}, {0, 1000000}};
    timerfd_settime(timer, 0, &each, NULL);
    ep = epoll_create1(0);
    watch(ep, listener, NULL);
    watch(ep, timer, &timer);
    static char buffer[262144];
    struct epoll_event events[256];
    for (;;) {
        int n = wait_for(ep, events, 256, -1, busy >= BUSY);
        for (int i = 0; i < n; i++) {
            struct conn *c = events[i].data.ptr;
            if (!c) {
                int fd;
                while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    no_delay(fd);
                    struct conn *fresh = calloc(1, sizeof *fresh);
                    fresh->fd = fd;
                    fresh->body_left = -1;
                    fresh->head = malloc(HEAD_MAX);
                    watch(ep, fd, fresh);
                }
            } else if ((void *)c == (void *)&timer) {
                uint64_t times;
                if (read(timer, &times, sizeof times) == sizeof times)
                    while (times--) {
                        tick();
                        if (++ticks % 1000 == 0) prepare(atoi(argv[3]));
                    }
                busy = asked;
                asked = 0;
                break; /* a tick may have dropped a connection that stands behind us in `events` */
            } else {
                long size = read(c->fd, buffer, sizeof buffer);
                if (size > 0) got(c, buffer, size);
                else if (size == 0 || errno != EAGAIN) drop(c);
            }
        }
    }
}
