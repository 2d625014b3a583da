// How the true end of an operation becomes known.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "slot_ring.h"

namespace ranksight {

inline void completed(SlotRing* ring, uint64_t ticket, bool failed) {
  if (failed) ring->change_flags(ticket, FLAG_FAILED, 0);
  if (!ring->stamp(ticket, COLLECTIVE_complete_ns, now_ns())) ring->add(HEADER_late_completions, 1);
}

// CPU backends: the future of the Work is completed by the backend's own thread when the operation has ended.
// The callback runs on that thread, touches neither Python nor the Work, and may outlive the interpreter.
//
// Not for devices: there the future and the wait are over when the work is queued, not when it is done. Such
// operations carry NO_COMPLETION, and the end of their wait is no upper bound.
class FutureCompletion {
 public:
  // True when `completed` will be called (or was) once the operation has ended.
  bool watch(c10d::Work& work, SlotRing* ring, uint64_t ticket) {
    const void* kind = *reinterpret_cast<const void* const*>(&work);  // its vtable: one per class of Work
    if (has_no_future(kind)) return false;
    c10::intrusive_ptr<c10::ivalue::Future> future;
    try {
      future = work.getFuture();
    } catch (...) {
      remember(kind);  // "not implemented": throwing costs microseconds, so it is asked once per class
      return false;
    }
    if (!future) return false;
    future->addCallback(
        [ring, ticket](c10::ivalue::Future& done) { completed(ring, ticket, done.hasError()); }, /*uses_future=*/false);
    return true;
  }

 private:
  static constexpr int MOST = 16;
  bool has_no_future(const void* kind) const {
    for (const auto& known : without_) {
      if (known.load(std::memory_order_relaxed) == kind) return true;
    }
    return false;
  }
  void remember(const void* kind) {
    for (auto& known : without_) {
      const void* empty = nullptr;
      if (known.compare_exchange_strong(empty, kind) || empty == kind) return;
    }
  }
  std::atomic<const void*> without_[MOST] = {};
};

}  // namespace ranksight
