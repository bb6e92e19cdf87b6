/* The floor of a call: a loop around cudnnBackendExecute on finalized descriptors, for cudnn-backend bench.
 *
 * cc -O2 -shared -fPIC -o c_loop.so c_loop.c
 */
#define _POSIX_C_SOURCE 199309L
#include <stdint.h>
#include <time.h>

typedef int (*execute_function)(void *handle, void *plan, void *variant_pack);

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Execute `calls` times, over the variant packs in turn; return nanoseconds, or minus the first status that is not 0. */
int64_t c_loop(execute_function execute, void *handle, void *plan, void **packs, int64_t pack_count, int64_t calls) {
  const int64_t start = now_ns();
  int64_t next = 0;
  for (int64_t index = 0; index < calls; ++index) {
    const int status = execute(handle, plan, packs[next]);
    if (status != 0) return -(int64_t)status;
    if (++next == pack_count) next = 0;
  }
  return now_ns() - start;
}
