// The collectives ring, the header fields and the tap table of one ring file, as wire.py lays them out.
// No torch and no Python here. Everything may be called from any thread, with or without the GIL.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <unordered_map>

#include "wire.h"

namespace ranksight {

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// Held for a few dozen instructions.
class SpinLock {
 public:
  void lock() {
    for (int tries = 1; flag_.test_and_set(std::memory_order_acquire); tries++) {
      if (tries % 64 == 0) sched_yield();
    }
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_ = ATOMIC_FLAG_INIT;
};

class Locked {
 public:
  explicit Locked(SpinLock& lock) : lock_(lock) { lock_.lock(); }
  ~Locked() { lock_.unlock(); }
  Locked(const Locked&) = delete;

 private:
  SpinLock& lock_;
};

template <class T>
T& field(char* block, uint64_t offset) {
  return *reinterpret_cast<T*>(block + offset);
}

class SlotRing {
 public:
  // A mapping of its own, never unmapped: gloo's threads may stamp a slot after Python's mmap object is gone.
  bool map(const char* path, std::string& error) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
      error = std::string("cannot open ") + path + ": " + strerror(errno);
      if (fd >= 0) close(fd);
      return false;
    }
    void* base = mmap(nullptr, info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    close(fd);
    if (base == MAP_FAILED) {
      error = std::string("cannot map ") + path + ": " + strerror(errno);
      return false;
    }
    base_ = static_cast<char*>(base);
    slots_ = header<uint64_t>(HEADER_collectives_slots);
    collectives_ = base_ + header<uint64_t>(HEADER_collectives_offset);
    table_ = base_ + header<uint64_t>(HEADER_tap_table_offset);
    table_bytes_ = header<uint64_t>(HEADER_tap_table_bytes);
    strings_.clear();
    count_entries();
    return true;
  }

  template <class T>
  T& header(uint64_t offset) {
    return field<T>(base_, offset);
  }
  void add(uint64_t offset, uint64_t amount) {
    __atomic_fetch_add(&header<uint64_t>(offset), amount, __ATOMIC_RELAXED);
  }

  // Index of the first of 1 + extra new slots, all of them invalid to readers until `publish`.
  uint64_t reserve(uint64_t extra) {
    uint64_t index = __atomic_fetch_add(&header<uint64_t>(HEADER_collectives_head), 1 + extra, __ATOMIC_RELAXED);
    for (uint64_t i = index; i <= index + extra; i++) {
      __atomic_store_n(&field<uint64_t>(slot(i), COLLECTIVE_ticket), 0, __ATOMIC_RELAXED);
    }
    std::atomic_thread_fence(std::memory_order_release);
    return index;
  }
  char* slot(uint64_t index) { return collectives_ + index % slots_ * COLLECTIVE_SIZE; }
  void publish(uint64_t index) {
    __atomic_store_n(&field<uint64_t>(slot(index), COLLECTIVE_ticket), index + 1, __ATOMIC_RELEASE);
  }
  uint64_t slots() const { return slots_; }

  bool owns(uint64_t ticket) {
    return __atomic_load_n(&field<uint64_t>(slot(ticket - 1), COLLECTIVE_ticket), __ATOMIC_ACQUIRE) == ticket;
  }
  // The ticket is looked at just before the store; a writer that laps the whole ring in between would get a wrong time.
  bool stamp(uint64_t ticket, uint64_t offset, int64_t ns) {
    if (!owns(ticket)) return false;
    __atomic_store_n(&field<int64_t>(slot(ticket - 1), offset), ns, __ATOMIC_RELEASE);
    return true;
  }
  uint16_t flags(uint64_t ticket) {
    return __atomic_load_n(&field<uint16_t>(slot(ticket - 1), COLLECTIVE_flags), __ATOMIC_ACQUIRE);
  }
  int64_t time_of(uint64_t ticket, uint64_t offset) {
    return __atomic_load_n(&field<int64_t>(slot(ticket - 1), offset), __ATOMIC_ACQUIRE);
  }
  void change_flags(uint64_t ticket, uint16_t set, uint16_t clear) {
    if (!owns(ticket)) return;
    uint16_t& flags = field<uint16_t>(slot(ticket - 1), COLLECTIVE_flags);
    if (clear) __atomic_fetch_and(&flags, static_cast<uint16_t>(~clear), __ATOMIC_ACQ_REL);
    if (set) __atomic_fetch_or(&flags, set, __ATOMIC_ACQ_REL);
  }

  // Number of a new table entry within its kind, 0 when the table is full.
  uint32_t append(uint16_t kind, const std::string& payload) {
    Locked hold(table_lock_);
    return append_locked(kind, payload);
  }
  // Number of `text` in the table, 0 when it is full.
  uint32_t string(const std::string& text) {
    Locked hold(table_lock_);
    auto found = strings_.find(text);
    if (found != strings_.end()) return found->second;
    uint32_t number = append_locked(TABLE_STRING, text.substr(0, 4096));
    strings_.emplace(text, number);
    return number;
  }

 private:
  uint32_t append_locked(uint16_t kind, const std::string& payload) {
    uint64_t used = header<uint64_t>(HEADER_tap_table_used);
    uint64_t padded = (payload.size() + 7) / 8 * 8;
    if (used + 8 + padded > table_bytes_) {
      add(HEADER_tap_errors, 1);
      return 0;
    }
    field<uint32_t>(table_, used) = static_cast<uint32_t>(payload.size());
    field<uint16_t>(table_, used + 4) = kind;
    field<uint16_t>(table_, used + 6) = 0;
    memcpy(table_ + used + 8, payload.data(), payload.size());
    __atomic_store_n(&header<uint64_t>(HEADER_tap_table_used), used + 8 + padded, __ATOMIC_RELEASE);
    return ++entries_[kind];
  }
  // A tap that is installed again on the same file goes on numbering where the last one stopped.
  void count_entries() {
    memset(entries_, 0, sizeof(entries_));
    for (uint64_t at = 0; at < header<uint64_t>(HEADER_tap_table_used);) {
      uint16_t kind = field<uint16_t>(table_, at + 4);
      if (kind < 8) entries_[kind]++;
      at += 8 + (field<uint32_t>(table_, at) + 7) / 8 * 8;
    }
  }

  char* base_ = nullptr;
  char* collectives_ = nullptr;
  char* table_ = nullptr;
  uint64_t slots_ = 0;
  uint64_t table_bytes_ = 0;
  uint32_t entries_[8] = {};
  SpinLock table_lock_;
  std::unordered_map<std::string, uint32_t> strings_;
};

}  // namespace ranksight
