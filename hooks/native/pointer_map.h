// Which slot an object belongs to, by address: the Work that a caller waits for, the storage that wait_tensor gets.
// A fixed table that forgets the oldest operation of a set. Nothing is kept alive: holding a Work would leak
// every operation that is never waited for.
#pragma once

#include <cstdint>

#include "slot_ring.h"

namespace ranksight {

class PointerMap {
 public:
  void put(const void* key, uint64_t ticket) {
    Set& set = set_of(key);
    Locked hold(set.lock);
    Entry* victim = &set.entries[0];
    for (Entry& entry : set.entries) {
      if (entry.key == key) {
        victim = &entry;
        break;
      }
      if (entry.ticket < victim->ticket) victim = &entry;
    }
    *victim = {key, ticket};
  }

  // The ticket last put for `key`, once; 0 when there is none.
  uint64_t take(const void* key) {
    Set& set = set_of(key);
    Locked hold(set.lock);
    for (Entry& entry : set.entries) {
      if (entry.key == key && entry.ticket) {
        uint64_t ticket = entry.ticket;
        entry = {};
        return ticket;
      }
    }
    return 0;
  }

 private:
  struct Entry {
    const void* key = nullptr;
    uint64_t ticket = 0;
  };
  struct alignas(64) Set {
    SpinLock lock;
    Entry entries[7];
  };
  static constexpr uint64_t SETS = 256;
  Set& set_of(const void* key) {
    return sets_[reinterpret_cast<uint64_t>(key) * 0x9E3779B97F4A7C15ULL >> 56];  // 8 bits: SETS
  }
  Set sets_[SETS];
};

}  // namespace ranksight
