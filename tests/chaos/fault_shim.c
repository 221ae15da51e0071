/* Steps the wall clock and slows the reads of the processes that preload it, as the file FAULT_SHIM says. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static volatile struct {
  long offset; /* seconds that are added to the wall clock */
  long slow;   /* the process whose reads are slow; 0: none */
  long delay;  /* nanoseconds before each of its reads, below 1 s */
} *fault;

__attribute__((constructor)) static void map_fault(void) {
  const char *path = getenv("FAULT_SHIM");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *mapped = mmap(0, sizeof *fault, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (mapped != MAP_FAILED) fault = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int status = syscall(SYS_clock_gettime, clock, now);
  if (!status && fault && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += fault->offset;
  return status;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec precise;
  int status = clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return status;
}

time_t time(time_t *now) {
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (now) *now = precise.tv_sec;
  return precise.tv_sec;
}

static void delay(void) {
  if (!fault || fault->slow != getpid()) return;
  struct timespec length = {0, fault->delay};
  nanosleep(&length, 0);
}

/* Defines a read of libc that comes late in a slow process. */
#define SLOW(name, parameters, arguments)                   \
  ssize_t name parameters {                                 \
    static ssize_t(*read_now) parameters;                   \
    if (!read_now) read_now = dlsym(RTLD_NEXT, #name);      \
    delay();                                                \
    return read_now arguments;                              \
  }

SLOW(read, (int file, void *into, size_t size), (file, into, size))
SLOW(pread, (int file, void *into, size_t size, off_t from), (file, into, size, from))
SLOW(pread64, (int file, void *into, size_t size, off64_t from), (file, into, size, from))
SLOW(readv, (int file, const struct iovec *into, int count), (file, into, count))
SLOW(recv, (int file, void *into, size_t size, int flags), (file, into, size, flags))
SLOW(recvfrom,
     (int file, void *into, size_t size, int flags, struct sockaddr *from, socklen_t *length),
     (file, into, size, flags, from, length))
SLOW(recvmsg, (int file, struct msghdr *into, int flags), (file, into, flags))
