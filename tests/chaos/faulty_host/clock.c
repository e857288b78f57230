/* A UTC clock that can be set while its processes run, by a library that they preload.

The file AIPERF_CLOCKS holds the seconds by which the clocks are ahead, as doubles: for the hosts of
the primary, r0 and r1. A process finds its own by its command line. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double *ahead;

__attribute__((constructor)) static void find(void) {
  static char command[4096];
  static double none;
  const char *path = getenv("AIPERF_CLOCKS");
  int host = 0, file = open("/proc/self/cmdline", O_RDONLY);
  ssize_t size = file < 0 ? 0 : read(file, command, sizeof command - 1);
  close(file);
  for (char *word = command; word < command + size; word += strlen(word) + 1)
    if (word[0] == 'r' && (word[1] == '0' || word[1] == '1') && !word[2]) host = 1 + word[1] - '0';
  file = path ? open(path, O_RDONLY) : -1;
  void *clocks = file < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
  ahead = clocks == MAP_FAILED ? &none : (double *)clocks + host;
}

int clock_gettime(clockid_t which, struct timespec *at) {
  int failed = syscall(SYS_clock_gettime, which, at);
  if (failed || which != CLOCK_REALTIME || !ahead) return failed;
  double now = at->tv_sec + *ahead, seconds = floor(now);
  at->tv_nsec += (now - seconds) * 1e9;
  at->tv_sec = seconds + at->tv_nsec / 1000000000;
  at->tv_nsec %= 1000000000;
  return 0;
}
