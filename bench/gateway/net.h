/* What the stub and the load client share: sockets, epoll, the clock. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline void die(const char *what) {
    perror(what);
    exit(1);
}

static inline void raise_limit(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static inline void no_delay(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static inline void watch(int ep, int fd, void *what) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
}

static inline struct sockaddr_in local(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return to;
}

static inline int listen_on(int port) {
    struct sockaddr_in at = local(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 4096)) die("listen");
    return fd;
}

static inline int dial(int port) {
    struct sockaddr_in to = local(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to)) die("connect");
    no_delay(fd);
    return fd;
}

static inline double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* `polled`: looks every 30 us instead of being woken. A proxy that writes to a sleeper pays for its waking, several
 * microseconds in a virtual machine, and the slower one writes to more of them; where engines and clients are other
 * machines nobody pays that. */
static inline int wait_for(int ep, struct epoll_event *events, int size, int timeout_ms, int polled) {
    if (!polled) return epoll_wait(ep, events, size, timeout_ms);
    int n = epoll_wait(ep, events, size, 0);
    if (n == 0) {
        struct timespec nap = {0, 30000};
        nanosleep(&nap, NULL);
    }
    return n;
}

static inline void precise_naps(void) {
    prctl(PR_SET_TIMERSLACK, 1000);
}
