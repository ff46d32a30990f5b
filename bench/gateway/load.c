/* Clients: so many connections, each asking again as soon as it is answered, or each holding one stream open. One
 * thread, epoll. Usage: load PORT CONNECTIONS SECONDS BODY_FILE HEADERS_FILE [PAUSE_US]
 *
 * Prints "ready" once every connection has had an answer (or its first event), then one line of JSON for the SECONDS
 * that follow. HEADERS_FILE is empty or holds whole header lines. PAUSE_US: rest before each request (low load).
 * An answer ends by its content-length, or at its last chunk; one that is not 200 is an error. */
#include "net.h"

#define SAMPLES 2000000

struct client {
    int fd, streaming, first;
    long used, left; /* of the body; -1: the head is not whole, -2: chunked */
    double began;
    char tail[8], head[8192];
};

/* Bodies differ in length, as those of real clients do: VARIANTS of them, each a few spaces longer. */
#define VARIANTS 64
static char *requests[VARIANTS];
static long sizes[VARIANTS];
static unsigned turn;
static int port, ready_clients;
static useconds_t rest_us;
static long done, errors, events_seen;
static uint32_t *took;
static int measuring;

static char *slurp(const char *path, long *size) {
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    char *data = malloc((size_t)*size + 1);
    if (fread(data, 1, (size_t)*size, file) != (size_t)*size) die("fread");
    data[*size] = 0;
    fclose(file);
    return data;
}

static void ask(struct client *c) {
    c->used = 0;
    c->left = -1;
    c->streaming = 0;
    memset(c->tail, 0, sizeof c->tail);
    if (rest_us) usleep(rest_us);
    c->began = now_s();
    unsigned which = turn++ % VARIANTS;
    for (long sent = 0; sent < sizes[which];) { /* blocking: a large body is sent before anybody answers it */
        long n = write(c->fd, requests[which] + sent, (size_t)(sizes[which] - sent));
        if (n <= 0) die("write");
        sent += n;
    }
}

static void answered(struct client *c, int good) {
    if (!c->first) {
        c->first = 1;
        ready_clients++;
    }
    if (measuring) {
        if (good && done < SAMPLES) took[done] = (uint32_t)((now_s() - c->began) * 1e6);
        if (good) done++;
        else errors++;
    }
}

static void again(int ep, struct client *c) {
    close(c->fd);
    c->fd = dial(port);
    watch(ep, c->fd, c);
    ask(c);
}

static void count_events(struct client *c, const char *data, long size) {
    char before = c->tail[0];
    for (const char *at = data; (at = memchr(at, '\n', (size_t)(data + size - at))); at++) {
        if ((at > data ? at[-1] : before) != '\n') continue;
        if (measuring) events_seen++;
        if (!c->first) {
            c->first = 1;
            ready_clients++;
        }
    }
    c->tail[0] = data[size - 1];
}

static void body(struct client *c, const char *data, long size) {
    if (c->streaming) {
        if (size > 0) count_events(c, data, size);
        return;
    }
    if (c->left == -2) {
        char end[16];
        long keep = size < 8 ? size : 8;
        memcpy(end, c->tail, 8);
        memcpy(end + 8, data + size - keep, (size_t)keep);
        memmove(c->tail, end + keep, 8);
        if (size > 0 && !memcmp(c->tail + 3, "0\r\n\r\n", 5)) {
            answered(c, 1);
            ask(c);
        }
        return;
    }
    c->left -= size;
    if (c->left <= 0) {
        answered(c, 1);
        ask(c);
    }
}

static void got(int ep, struct client *c, char *data, long size) {
    if (c->left != -1) {
        body(c, data, size);
        return;
    }
    if (c->used + size >= (long)sizeof c->head) {
        answered(c, 0);
        again(ep, c);
        return;
    }
    memcpy(c->head + c->used, data, (size_t)size);
    c->used += size;
    c->head[c->used] = 0;
    char *end = strstr(c->head, "\r\n\r\n");
    if (!end) return;
    *end = 0;
    if (strncmp(c->head, "HTTP/1.1 200", 12)) {
        if (!errors && !measuring) fprintf(stderr, "%s\n", c->head);
        answered(c, 0);
        again(ep, c);
        return;
    }
    char *length = strcasestr(c->head, "\r\ncontent-length:");
    c->streaming = strcasestr(c->head, "text/event-stream") != NULL;
    c->left = length ? atol(length + 17) : -2;
    long rest = c->used - (end + 4 - c->head);
    if (rest > 0 || c->left == 0) body(c, end + 4, rest);
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    raise_limit();
    precise_naps();
    port = atoi(argv[1]);
    int connections = atoi(argv[2]);
    double seconds = atof(argv[3]), end = now_s() + 20, began = 0;
    rest_us = argc > 6 ? (useconds_t)atoi(argv[6]) : 0;
    long body_size, extra_size;
    char *text = slurp(argv[4], &body_size), *extra = slurp(argv[5], &extra_size);
    for (int i = 0; i < VARIANTS; i++) {
        char *request = requests[i] = malloc((size_t)(body_size + extra_size) + 512);
        long size = sprintf(request, "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n"
                                     "user-agent: load\r\naccept: */*\r\ncontent-type: application/json\r\n%s"
                                     "content-length: %ld\r\n\r\n", port, extra, body_size + i);
        memcpy(request + size, text, (size_t)body_size);
        memset(request + size + body_size, ' ', (size_t)i);
        sizes[i] = size + body_size + i;
    }
    took = malloc(SAMPLES * sizeof *took);
    int ep = epoll_create1(0);
    struct client *clients = calloc((size_t)connections, sizeof *clients);
    for (int i = 0; i < connections; i++) {
        clients[i].fd = dial(port);
        watch(ep, clients[i].fd, &clients[i]);
        ask(&clients[i]);
    }
    static char buffer[262144];
    struct epoll_event events[256];
    for (;;) {
        if (!measuring && ready_clients == connections) {
            measuring = 1;
            printf("ready\n");
            fflush(stdout);
            began = now_s();
            end = began + seconds;
        }
        if (now_s() >= end) break;
        int n = wait_for(ep, events, 256, 100, connections >= 16);
        for (int i = 0; i < n; i++) {
            struct client *c = events[i].data.ptr;
            long size = recv(c->fd, buffer, sizeof buffer, MSG_DONTWAIT);
            if (size > 0) got(ep, c, buffer, size);
            else if (size == 0 || errno != EAGAIN) {
                answered(c, 0);
                again(ep, c);
            }
        }
    }
    long kept = done < SAMPLES ? done : SAMPLES;
    qsort(took, (size_t)kept, sizeof *took, by_size);
    printf("{\"requests\":%ld,\"errors\":%ld,\"events\":%ld,\"seconds\":%.3f,\"p50_us\":%u,\"p99_us\":%u}\n", done,
           errors, events_seen, now_s() - began, kept ? took[kept / 2] : 0, kept ? took[kept * 99 / 100] : 0);
    return 0;
}
