// Process groups by address, checked by name, and the sequence numbers of their operations.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "slot_ring.h"

namespace ranksight {

struct Group {
  std::string name;
  uint32_t number;  // in the tap table, 0 when it is full
  int32_t size;
  std::atomic<uint64_t> next{0};
  SpinLock p2p_lock;
  std::unordered_map<uint64_t, uint64_t> p2p_next;  // by (direction, peer, tag)

  uint64_t sequence() { return next.fetch_add(1, std::memory_order_relaxed); }

  // `full` is set when so many tags were used that the table starts again (and sequences with it).
  uint64_t p2p_sequence(int direction, int32_t peer, int32_t tag, bool& full) {
    constexpr size_t MOST = 1 << 16;
    uint64_t key = (uint64_t(direction == 2) << 63) | (uint64_t(uint32_t(peer) & 0x7fffffff) << 32) | uint32_t(tag);
    Locked hold(p2p_lock);
    if (p2p_next.size() >= MOST && !p2p_next.count(key)) {
      full = true;
      p2p_next.clear();
    }
    return p2p_next[key]++;
  }
};

class Groups {
 public:
  // The group at this address, or nullptr when it is new or another group lives there now.
  Group* find(const void* address, const std::string& name) {
    Locked hold(lock_);
    auto found = by_address_.find(address);
    return found != by_address_.end() && found->second->name == name ? found->second : nullptr;
  }

  Group* add(const void* address, const std::string& name, const std::string& description, int32_t size, int32_t rank,
             SlotRing& ring) {
    Locked hold(lock_);
    Group* group = new Group();  // kept for the life of the process: another thread may be using it
    group->name = name;
    group->size = size;
    uint32_t incarnation = seen_[name]++;
    std::string payload(20, '\0');
    field<int64_t>(payload.data(), 0) = now_ns();
    field<int32_t>(payload.data(), 8) = size;
    field<int32_t>(payload.data(), 12) = rank;
    field<uint32_t>(payload.data(), 16) = incarnation;
    payload += name;
    payload += '\0';
    payload += description;
    group->number = ring.append(TABLE_GROUP_SEEN, payload);
    by_address_[address] = group;
    return group;
  }

  // The next use of the group (of every group when name is nullptr) makes a new entry.
  void forget(const char* name) {
    Locked hold(lock_);
    for (auto at = by_address_.begin(); at != by_address_.end();) {
      at = !name || at->second->name == name ? by_address_.erase(at) : std::next(at);
    }
  }

 private:
  SpinLock lock_;
  std::unordered_map<const void*, Group*> by_address_;
  std::unordered_map<std::string, uint32_t> seen_;
};

}  // namespace ranksight
