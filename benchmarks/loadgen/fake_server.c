/* A streaming completion server that knows the truth about its own timing.
 *
 *   cc -O2 -o fake_server fake_server.c -lm
 *   ./fake_server [-k SLOTS] [-s MS] PORT TTFT_MS ITL_MS TOKENS [JITTER_MS] [LOG.csv]
 *
 * Answers POST to any path with TOKENS server-sent events (the request's max_tokens when it has one), the first
 * TTFT_MS (plus up to JITTER_MS) after the request reached this host and then one every ITL_MS. The clock of a request
 * starts at the kernel's receive stamp, so a late wake-up of this process is part of the logged truth and not an error
 * that would be blamed on the client.
 * With -k at most SLOTS requests are served at a time and the others wait in order, so that the server carries
 * SLOTS / (TTFT + (TOKENS - 1) x ITL) requests a second. With -s every token takes MS longer for each request that is
 * being served, as in an engine that decodes them together.
 *   GET /truth     JSON: ttft_ms and itl_ms as really sent, mean and percentiles, arrivals, CPU seconds of this process
 *   GET /reset     forgets everything logged so far
 *   GET /v1/models one model, called fake
 * One thread, epoll, binds to 127.0.0.1 only.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_FD 65536
#define MAX_REQUEST (1 << 20)

typedef struct {
    char *in;
    size_t used, room;
    int tokens, sent, busy, slot, waiting;
    double arrived_s, base_s, due_s, first_s, last_s;
    long id;
    int usage, chat;
} conn;

static conn *conns[MAX_FD];
static int heap[MAX_FD], heap_size;
static double ttft_s, itl_s, jitter_s, slower_s;
static int default_tokens, slots = MAX_FD, serving;
static int line[MAX_FD], line_start, line_size; /* those that wait for a slot, in order */
static FILE *log_file;
static volatile sig_atomic_t stop;

typedef struct { float *at; size_t used, room; } series;
static series ttfts, itls;
static series arrivals;
static double epoch_s;

static void note(series *s, double value) {
    if (s->used == s->room) {
        s->room = s->room ? s->room * 2 : 4096;
        s->at = realloc(s->at, s->room * sizeof *s->at);
        if (!s->at) exit(1);
    }
    s->at[s->used++] = (float)value;
}

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void place(int at, int fd) { heap[at] = fd; conns[fd]->slot = at; }

static void sift(int at) {
    int fd = heap[at];
    while (at > 0 && conns[heap[(at - 1) / 2]]->due_s > conns[fd]->due_s) {
        place(at, heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        int child = 2 * at + 1;
        if (child >= heap_size) break;
        if (child + 1 < heap_size && conns[heap[child + 1]]->due_s < conns[heap[child]]->due_s) child++;
        if (conns[heap[child]]->due_s >= conns[fd]->due_s) break;
        place(at, heap[child]);
        at = child;
    }
    place(at, fd);
}

static void wait_for(int fd) { heap[heap_size] = fd; conns[fd]->slot = heap_size++; sift(heap_size - 1); }

static void forget(int fd) {
    int at = conns[fd]->slot;
    if (at < 0) return;
    conns[fd]->slot = -1;
    if (at == --heap_size) return;
    place(at, heap[heap_size]);
    sift(at);
}

static double random_share(void) {
    static uint64_t x = 88172645463325252ull;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return (x >> 11) * 0x1.0p-53;
}

static void serve(int fd, double from_s) {
    conn *c = conns[fd];
    serving++;
    c->waiting = 0;
    c->base_s = c->due_s = from_s + ttft_s + jitter_s * random_share();
    wait_for(fd);
}

static void stand_in_line(int fd) {
    conns[fd]->waiting = 1;
    line[(line_start + line_size++) % MAX_FD] = fd;
}

static void free_slot(double now_s) {
    serving--;
    while (line_size && serving < slots) {
        int fd = line[line_start];
        line_start = (line_start + 1) % MAX_FD, line_size--;
        if (fd >= 0) serve(fd, now_s);
    }
}

static void leave(int fd) {
    for (int i = 0; conns[fd]->waiting && i < line_size; i++)
        if (line[(line_start + i) % MAX_FD] == fd) line[(line_start + i) % MAX_FD] = -1;
    if (conns[fd]->busy && !conns[fd]->waiting) free_slot(seconds(CLOCK_MONOTONIC));
}

static void hang_up(int fd) {
    forget(fd);
    leave(fd);
    free(conns[fd]->in);
    free(conns[fd]);
    conns[fd] = NULL;
    close(fd);
}

/* Tokens are tiny and the socket buffer is not: a short write means a client that stopped reading, and is dropped. */
static int say(int fd, const char *text, size_t size) { return send(fd, text, size, MSG_NOSIGNAL) == (ssize_t)size; }

static int answer(int fd, const char *body) {
    char head[160];
    int n = snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", strlen(body));
    return say(fd, head, n) && say(fd, body, strlen(body));
}

static int up(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static int spread(char *out, size_t room, const char *name, series *s) {
    double sum = 0;
    if (!s->used) return snprintf(out, room, "\"%s\": null", name);
    float *sorted = malloc(s->used * sizeof *sorted);
    memcpy(sorted, s->at, s->used * sizeof *sorted);
    qsort(sorted, s->used, sizeof *sorted, up);
    for (size_t i = 0; i < s->used; i++) sum += sorted[i];
    const double points[] = {0.5, 0.9, 0.95, 0.99};
    double q[4];
    for (int i = 0; i < 4; i++) {
        double at = points[i] * (s->used - 1);
        size_t low = (size_t)at, high = low + 1 < s->used ? low + 1 : low;
        q[i] = sorted[low] + (at - low) * (sorted[high] - sorted[low]);
    }
    int n = snprintf(out, room, "\"%s\": {\"mean\": %.4f, \"p50\": %.4f, \"p90\": %.4f, \"p95\": %.4f, \"p99\": %.4f}", name,
                     sum / s->used * 1e3, q[0] * 1e3, q[1] * 1e3, q[2] * 1e3, q[3] * 1e3);
    free(sorted);
    return n;
}

static int tell_truth(int fd) {
    struct rusage use;
    size_t room = 4096 + arrivals.used * 14, n = 0;
    char *out = malloc(room);
    getrusage(RUSAGE_SELF, &use);
    n += snprintf(out, room, "{\"requests\": %zu, \"cpu_s\": %.3f, ", ttfts.used,
                  use.ru_utime.tv_sec + use.ru_stime.tv_sec + (use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6);
    n += spread(out + n, room - n, "ttft_ms", &ttfts);
    n += snprintf(out + n, room - n, ", ");
    n += spread(out + n, room - n, "itl_ms", &itls);
    n += snprintf(out + n, room - n, ", \"arrivals_s\": [");
    for (size_t i = 0; i < arrivals.used; i++) n += snprintf(out + n, room - n, i ? ",%.5f" : "%.5f", arrivals.at[i]);
    snprintf(out + n, room - n, "]}\n");
    int sent = answer(fd, out);
    free(out);
    return sent;
}

static int begin(int fd, conn *c, const char *body) {
    static long number;
    const char *asked = strstr(body, "max_tokens");
    if (!asked) asked = strstr(body, "max_completion_tokens");
    if (!asked) asked = strstr(body, "max_new_tokens");
    c->tokens = asked && (asked = strchr(asked, ':')) ? atoi(asked + 1) : default_tokens;
    if (c->tokens < 1) c->tokens = default_tokens;
    c->usage = strstr(body, "include_usage") != NULL;
    c->chat = strstr(body, "\"messages\"") != NULL;
    c->sent = 0;
    c->busy = 1;
    c->id = number++;
    if (epoch_s == 0) epoch_s = c->arrived_s;
    note(&arrivals, c->arrived_s - epoch_s);
    if (serving < slots) serve(fd, c->arrived_s);
    else stand_in_line(fd);
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    return say(fd, head, sizeof head - 1);
}

static int chunk(char *out, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return sprintf(out, "%x\r\n%s\r\n", n, text);
}

static int next_token(int fd, conn *c, double now_s) {
    char out[1536];
    int n, last = c->sent + 1 == c->tokens;
    if (c->chat)
        n = chunk(out, "data: {\"id\":\"chatcmpl-%ld\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"fake\","
                  "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" tok%d\"},\"logprobs\":null,\"finish_reason\":%s}]}\n\n",
                  c->id, c->sent, last ? "\"length\"" : "null");
    else
        n = chunk(out, "data: {\"id\":\"cmpl-%ld\",\"object\":\"text_completion\",\"created\":1700000000,\"model\":\"fake\","
                  "\"choices\":[{\"index\":0,\"text\":\" tok%d\",\"logprobs\":null,\"finish_reason\":%s}]}\n\n",
                  c->id, c->sent, last ? "\"length\"" : "null");
    if (last && c->usage)
        n += chunk(out + n, "data: {\"id\":\"chatcmpl-%ld\",\"object\":\"chat.completion.chunk\",\"choices\":[],"
                   "\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\n", c->id, c->tokens, c->tokens + 10);
    if (last) n += sprintf(out + n, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
    if (!say(fd, out, n)) return 0;
    if (c->sent == 0) {
        c->first_s = now_s;
        note(&ttfts, now_s - c->arrived_s);
    } else
        note(&itls, now_s - c->last_s);
    c->last_s = now_s;
    c->sent++;
    c->due_s = slower_s > 0 ? c->due_s + itl_s + slower_s * serving : c->base_s + c->sent * itl_s;
    if (last) {
        c->busy = 0;
        forget(fd);
        free_slot(now_s);
        if (log_file) fprintf(log_file, "%ld,%.6f,%.6f,%.6f,%d\n", c->id, c->arrived_s, c->first_s, now_s, c->tokens);
    } else
        sift(c->slot);
    return 1;
}

static double kernel_stamp(struct msghdr *message) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMPNS) {
            struct timespec t;
            memcpy(&t, CMSG_DATA(c), sizeof t);
            return t.tv_sec + t.tv_nsec * 1e-9;
        }
    return 0;
}

static int request_done(int fd, conn *c) {
    char *body = memmem(c->in, c->used, "\r\n\r\n", 4);
    if (!body) return 1;
    body += 4;
    char *length = strcasestr(c->in, "\r\ncontent-length:");
    size_t size = length && length < body ? strtoul(length + 17, NULL, 10) : 0;
    if (c->used < (size_t)(body - c->in) + size) return 1;
    int fine;
    if (!strncmp(c->in, "GET /truth", 10)) fine = tell_truth(fd);
    else if (!strncmp(c->in, "GET /reset", 10)) {
        ttfts.used = itls.used = arrivals.used = 0;
        epoch_s = 0;
        fine = answer(fd, "{}");
    } else if (!strncmp(c->in, "GET ", 4))
        fine = answer(fd, "{\"object\":\"list\",\"data\":[{\"id\":\"fake\",\"object\":\"model\"}]}");
    else fine = begin(fd, c, body);
    c->used = 0;
    return fine;
}

static int readable(int fd, conn *c) {
    if (c->room - c->used < 4096) {
        if (c->room >= MAX_REQUEST) return 0;
        c->room = c->room ? c->room * 2 : 8192;
        c->in = realloc(c->in, c->room);
        if (!c->in) exit(1);
    }
    char control[64];
    struct iovec part = {c->in + c->used, c->room - c->used - 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(fd, &message, 0);
    if (n <= 0) return n < 0 && errno == EAGAIN;
    double now_s = seconds(CLOCK_MONOTONIC), stamp_s = kernel_stamp(&message);
    double late_s = stamp_s > 0 ? seconds(CLOCK_REALTIME) - stamp_s : 0;
    c->arrived_s = late_s > 0 && late_s < 1 ? now_s - late_s : now_s;
    c->used += n;
    c->in[c->used] = 0;
    return c->busy || request_done(fd, c);
}

static void greet(int listener, int poll_fd) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), one = 1;
        if (fd < 0) return;
        if (fd >= MAX_FD) { close(fd); continue; }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
        conns[fd] = calloc(1, sizeof(conn));
        if (!conns[fd]) exit(1);
        conns[fd]->slot = -1;
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

static void on_signal(int number) { (void)number; stop = 1; }

static int listen_on(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof here;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&here, sizeof here) || listen(fd, 4096)) {
        perror("fake_server: cannot listen");
        exit(1);
    }
    getsockname(fd, (struct sockaddr *)&here, &size);
    printf("%d\n", ntohs(here.sin_port));
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv) {
    for (int option; (option = getopt(argc, argv, "k:s:")) != -1;) {
        if (option == 'k') slots = atoi(optarg);
        else if (option == 's') slower_s = atof(optarg) / 1e3;
        else argc = 0;
    }
    if (argc - optind < 4 || slots < 1) {
        fprintf(stderr, "usage: %s [-k SLOTS] [-s MS] PORT TTFT_MS ITL_MS TOKENS [JITTER_MS] [LOG.csv]   (port 0: any; it is printed)\n", argv[0]);
        return 2;
    }
    argv += optind - 1, argc -= optind - 1;
    ttft_s = atof(argv[2]) / 1e3, itl_s = atof(argv[3]) / 1e3, default_tokens = atoi(argv[4]);
    jitter_s = argc > 5 ? atof(argv[5]) / 1e3 : 0;
    if (argc > 6) log_file = fopen(argv[6], "w");
    signal(SIGTERM, on_signal), signal(SIGINT, on_signal), signal(SIGPIPE, SIG_IGN);
    int listener = listen_on(atoi(argv[1])), poll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, ready[256];
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &event);
    while (!stop) {
        double wait_s = heap_size ? conns[heap[0]]->due_s - seconds(CLOCK_MONOTONIC) : 1;
        if (wait_s < 0) wait_s = 0;
        struct timespec wait = {(time_t)wait_s, (long)((wait_s - (time_t)wait_s) * 1e9)};
        int n = epoll_pwait2(poll_fd, ready, 256, &wait, NULL);
        for (int i = 0; i < n; i++) {
            int fd = ready[i].data.fd;
            if (fd == listener) greet(listener, poll_fd);
            else if (conns[fd] && !readable(fd, conns[fd])) hang_up(fd);
        }
        double now_s = seconds(CLOCK_MONOTONIC);
        while (heap_size && conns[heap[0]]->due_s <= now_s) {
            int fd = heap[0];
            if (!next_token(fd, conns[fd], now_s)) hang_up(fd);
            now_s = seconds(CLOCK_MONOTONIC);
        }
    }
    if (log_file) fclose(log_file);
    return 0;
}
