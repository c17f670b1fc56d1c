// Preloaded into a program, moves its wall clock by the seconds (int64) in the file that $CLOCK_STEP_FILE names, from one
// call to the next. The monotonic clocks stay, and so do waits: libfaketime 0.9.10 makes clock_nanosleep() fail, with
// which Python sleeps.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *step;
static int (*real_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    static const int64_t none = 0;
    const char *path = getenv("CLOCK_STEP_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *shared = file >= 0 ? mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    step = shared == MAP_FAILED ? &none : shared;
    if (file >= 0) close(file);
    real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real_gettime) begin();
    int result = real_gettime(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *step;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    *now = (struct timeval){exact.tv_sec, exact.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *now) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return (time_t)-1;
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
