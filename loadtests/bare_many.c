/* Many connections without a broker, and the load for them: see micro_many.py, which compiles and runs this.
 *
 *   bare_many serve CONNECTIONS REQUEST_BYTES ANSWER_BYTES FILE
 *   bare_many lead CONNECTIONS REQUEST_BYTES ANSWER_BYTES FILE
 *   bare_many follow PORT FILE
 *   bare_many load PORT CONNECTIONS PIPELINE REQUEST_FILE ANSWER_BYTES SECONDS
 *
 * serve and lead print their port; serve answers each whole request with so many bytes after a recv and a pwrite for it.
 * lead does the same, but answers what two followers, which connect before "followed" is printed, have written too. As in a
 * fetch, a follower is sent what there is once it has said that it has written what came before.
 * load keeps PIPELINE copies of the request in flight on each connection; it prints requests a second.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SCRATCH = 1 << 18, WRAP = 1 << 30 };

static void need(int true_, const char *what) {
    if (!true_) { perror(what); exit(1); }
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void prepare(int poll, int fd, int index) {
    int one = 1;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = index};
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    need(epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

static int serve(int count, long request_bytes, int answer_bytes, const char *path) {
    static char scratch[SCRATCH], answer[4096];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0);
    int file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    int *fds = calloc(count, sizeof *fds);
    long *got = calloc(count, sizeof *got), position = 0;
    need(file >= 0, path);
    need(bind(listener, (void *)&address, sizeof address) == 0 && listen(listener, count) == 0, "listen");
    getsockname(listener, (void *)&address, &length);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (int i = 0; i < count; i++) prepare(poll, fds[i] = accept(listener, 0, 0), i);
    for (;;) {
        struct epoll_event events[1024];
        int ready = epoll_wait(poll, events, 1024, -1);
        for (int i = 0; i < ready; i++) {
            int c = events[i].data.u32;
            ssize_t n = recv(fds[c], scratch, SCRATCH, 0);
            if (n <= 0) { if (n < 0 && errno == EAGAIN) continue; return 0; }
            need(pwrite(file, scratch, n, position) == n, "pwrite");
            if ((position += n) > WRAP) { need(ftruncate(file, 0) == 0, "ftruncate"); position = 0; }
            got[c] += n;
            long whole = got[c] / request_bytes;
            got[c] %= request_bytes;
            if (whole) need(send(fds[c], answer, whole * answer_bytes, MSG_NOSIGNAL) > 0, "send");
        }
    }
}

static void send_whole(int fd, const void *data, size_t size) {
    while (size) {
        ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) continue;
        need(n > 0, "send");
        data = (const char *)data + n;
        size -= n;
    }
}

static void write_at(int file, const void *data, size_t size, long *position) {
    need(pwrite(file, data, size, *position) == (ssize_t)size, "pwrite");
    if ((*position += size) > WRAP) { need(ftruncate(file, 0) == 0, "ftruncate"); *position = 0; }
}

/* What followers do not have yet lies in a ring in memory; a broker has it in the page cache. */
enum { FOLLOWERS = 2, RING = 1 << 28, WAITING = 1 << 16 };

static int lead(int count, long request_bytes, int answer_bytes, const char *path) {
    static char answer[1 << 16];
    char *ring = malloc(RING);
    struct { int client; long end; } *waiting = calloc(WAITING, sizeof *waiting);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0), all = FOLLOWERS + count;
    int file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    int *fds = calloc(all, sizeof *fds), *due = calloc(all, sizeof *due);
    long *got = calloc(all, sizeof *got), sent[FOLLOWERS] = {0}, has[FOLLOWERS] = {0}, asks[FOLLOWERS];
    long position = 0, end = 0, first = 0, last = 0;
    need(file >= 0, path);
    need(bind(listener, (void *)&address, sizeof address) == 0 && listen(listener, all) == 0, "listen");
    getsockname(listener, (void *)&address, &length);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (int i = 0; i < all; i++) {
        if (i == FOLLOWERS) { printf("followed\n"); fflush(stdout); }
        prepare(poll, fds[i] = accept(listener, 0, 0), i);
    }
    for (int i = 0; i < FOLLOWERS; i++) asks[i] = 1;
    for (;;) {
        struct epoll_event events[1024];
        int ready = epoll_wait(poll, events, 1024, -1);
        for (int i = 0; i < ready; i++) {
            int c = events[i].data.u32;
            if (c < FOLLOWERS) {
                ssize_t n = recv(fds[c], &has[c], sizeof has[c], MSG_WAITALL);
                if (n < 0 && errno == EAGAIN) continue;
                if (n != sizeof has[c]) return 0;
                asks[c] = 1;
                continue;
            }
            long place = end % RING, room = RING - place;
            ssize_t n = recv(fds[c], ring + place, room < SCRATCH ? room : SCRATCH, 0);
            if (n <= 0) { if (n < 0 && errno == EAGAIN) continue; return 0; }
            write_at(file, ring + place, n, &position);
            end += n;
            got[c] += n;
            for (; got[c] >= request_bytes; got[c] -= request_bytes) {
                waiting[last % WAITING].client = c;
                waiting[last++ % WAITING].end = end;
            }
        }
        for (int i = 0; i < FOLLOWERS; i++) {
            long size = end - sent[i], place = sent[i] % RING;
            if (!asks[i] || !size) continue;
            if (size > RING - place) size = RING - place;
            send_whole(fds[i], &size, sizeof size);
            send_whole(fds[i], ring + place, size);
            sent[i] += size;
            asks[i] = 0;
        }
        long stored = has[0] < has[1] ? has[0] : has[1], begun = first;
        while (first < last && waiting[first % WAITING].end <= stored) due[waiting[first++ % WAITING].client]++;
        for (; begun < first; begun++) {
            int c = waiting[begun % WAITING].client;
            if (due[c]) send_whole(fds[c], answer, (size_t)due[c] * answer_bytes);
            due[c] = 0;
        }
    }
}

static int follow(int port, const char *path) {
    char *data = malloc(RING);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1, file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    long total = 0, position = 0, size;
    need(file >= 0, path);
    need(connect(fd, (void *)&address, sizeof address) == 0, "connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (;;) {
        if (recv(fd, &size, sizeof size, MSG_WAITALL) != sizeof size) return 0;
        if (recv(fd, data, size, MSG_WAITALL) != size) return 0;
        write_at(file, data, size, &position);
        total += size;
        send_whole(fd, &total, sizeof total);
    }
}

static int load(int port, int count, int pipeline, const char *path, int answer_bytes, double seconds) {
    static char scratch[SCRATCH];
    int poll = epoll_create1(0), request = open(path, O_RDONLY);
    long request_bytes = lseek(request, 0, SEEK_END), done = 0;
    char *data = malloc(request_bytes * pipeline);
    int *fds = calloc(count, sizeof *fds);
    long *got = calloc(count, sizeof *got), *unsent = calloc(count, sizeof *unsent);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < pipeline; i++) need(pread(request, data + i * request_bytes, request_bytes, 0) == request_bytes, path);
    for (int i = 0; i < count; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        need(connect(fds[i], (void *)&address, sizeof address) == 0, "connect");
        prepare(poll, fds[i], i);
        unsent[i] = request_bytes * pipeline;
    }
    double began = now_s(), end = began + seconds;
    for (int first = 1;; first = 0) {
        struct epoll_event events[1024];
        int ready = first ? count : epoll_wait(poll, events, 1024, 1000);
        if (now_s() > end) break;
        for (int i = 0; i < ready; i++) {
            int c = first ? i : (int)events[i].data.u32;
            if (!first && (events[i].events & EPOLLIN)) {
                ssize_t n = recv(fds[c], scratch, SCRATCH, 0);
                if (n <= 0) { fprintf(stderr, "the server has closed a connection\n"); return 1; }
                got[c] += n;
                long whole = got[c] / answer_bytes;
                got[c] %= answer_bytes;
                done += whole;
                unsent[c] += whole * request_bytes;
            }
            while (unsent[c] > 0) {
                long all = request_bytes * pipeline, start = unsent[c] % request_bytes;
                start = start ? request_bytes - start : 0; /* what of the request under way has left */
                ssize_t n = send(fds[c], data + start, unsent[c] < all - start ? unsent[c] : all - start, MSG_NOSIGNAL);
                if (n < 0) {
                    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u32 = c};
                    need(errno == EAGAIN, "send");
                    epoll_ctl(poll, EPOLL_CTL_MOD, fds[c], &event);
                    break;
                }
                unsent[c] -= n;
            }
        }
    }
    printf("%.1f\n", done / (now_s() - began));
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 6 && !strcmp(argv[1], "serve")) return serve(atoi(argv[2]), atol(argv[3]), atoi(argv[4]), argv[5]);
    if (argc == 6 && !strcmp(argv[1], "lead")) return lead(atoi(argv[2]), atol(argv[3]), atoi(argv[4]), argv[5]);
    if (argc == 4 && !strcmp(argv[1], "follow")) return follow(atoi(argv[2]), argv[3]);
    if (argc == 8 && !strcmp(argv[1], "load"))
        return load(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), argv[5], atoi(argv[6]), atof(argv[7]));
    fprintf(stderr, "see the top of bare_many.c\n");
    return 2;
}
