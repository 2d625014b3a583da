// The one tap of this process. Never destroyed: backend threads may use it while the process exits.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>

#include "call_site.h"
#include "completion.h"
#include "groups.h"
#include "payload.h"
#include "pointer_map.h"

namespace ranksight {

inline thread_local uint32_t thread_id_cache = 0;

inline uint32_t thread_id() {
  if (!thread_id_cache) thread_id_cache = static_cast<uint32_t>(syscall(SYS_gettid));
  return thread_id_cache;
}

// Added to a ticket in `works`: the wait ends when the device has the work in its queue.
constexpr uint64_t QUEUED_ONLY = uint64_t(1) << 63;

struct Tap {
  std::atomic<bool> active{false};
  std::atomic<bool> beating{false};
  SlotRing* ring = nullptr;  // a new one for each ring file, the old ones stay for late completions
  std::string path;
  Groups groups;
  PointerMap works;  // what a caller waits for (Work, or storage for wait_tensor) -> ticket
  CallSites sites;
  FutureCompletion futures;

  // A thread that needs neither the GIL nor a live Python: its beat tells a rank that holds the GIL from a stopped one.
  void start_heartbeat() {
    beating = true;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // the thread inherits it: no signal handler ever runs there
    pthread_t thread;
    if (pthread_create(&thread, nullptr, beat, this) == 0) {
      pthread_detach(thread);
    } else {
      ring->add(HEADER_tap_errors, 1);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  // A forked child must not write into its parent's ring; it may install a tap of its own. Another thread may have held
  // a lock or been inside a container when the fork happened, so these are made anew and the old ones left alone.
  void after_fork_in_child() {
    active = false;
    beating = false;
    ring = nullptr;
    thread_id_cache = 0;
    new (&path) std::string();
    new (&groups) Groups();
    new (&works) PointerMap();
  }

 private:
  static void* beat(void* self) {
    Tap* tap = static_cast<Tap*>(self);
    SlotRing* ring = tap->ring;
    timespec pause{0, 100'000'000};
    while (tap->beating.load(std::memory_order_relaxed) && tap->ring == ring) {
      __atomic_store_n(&ring->header<int64_t>(HEADER_native_heartbeat_ns), now_ns(), __ATOMIC_RELAXED);
      nanosleep(&pause, nullptr);
    }
    return nullptr;
  }
};

inline Tap& tap() {
  static Tap* only = new Tap();
  return *only;
}

}  // namespace ranksight
