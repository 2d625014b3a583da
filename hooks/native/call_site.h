// The line of user code that issued an operation, found without the GIL.
//
// A thread that runs a collective has let go of the GIL, but its own frames stand still until it takes the GIL back:
// they, their code objects and the strings of those can be read. Nothing is allocated in Python and no reference
// count is touched. Frame layouts are private to each Python version; where this file does not know the running one,
// operations have no call site.
#pragma once

#include <Python.h>

#include <string>
#include <vector>

#include "slot_ring.h"

#define RANKSIGHT_CALL_SITES (PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000)
#if RANKSIGHT_CALL_SITES
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

namespace ranksight {

class CallSites {
 public:
  // Files that begin with one of `skip` are not the user's, unless the rest of the path begins with one of `keep`
  // (site-packages lies below the standard library).
  void configure(const std::vector<std::string>& skip, const std::vector<std::string>& keep) {
    skip_ = skip;
    keep_ = keep;
    new (&lock_) SpinLock();
    for (Entry& entry : entries_) entry = {};
  }

  uint32_t current(SlotRing& ring) {
#if RANKSIGHT_CALL_SITES
    PyThreadState* thread = PyGILState_GetThisThreadState();
    if (!thread || !thread->cframe) return 0;
    int depth = 0;
    for (_PyInterpreterFrame* frame = thread->cframe->current_frame; frame && depth < MOST_FRAMES;
         frame = frame->previous, depth++) {
      PyCodeObject* code = frame->f_code;
      int at = _PyInterpreterFrame_LASTI(frame) * static_cast<int>(sizeof(_Py_CODEUNIT));
      if (at < 0 || is_foreign(code->co_filename)) continue;
      return number_of(code, at, ring);
    }
#endif
    return 0;
  }

 private:
#if RANKSIGHT_CALL_SITES
  // An address may be used again by another code object, so what the text was made from is compared too.
  struct Entry {
    const PyCodeObject* code = nullptr;
    const PyObject *filename = nullptr, *name = nullptr, *line_table = nullptr;
    Py_hash_t name_hash = 0;
    int at = 0, first_line = 0;
    uint32_t number = 0;
  };

  bool is_foreign(PyObject* filename) {
    if (!PyUnicode_IS_COMPACT_ASCII(filename)) return false;
    const char* text = reinterpret_cast<const char*>(PyUnicode_1BYTE_DATA(filename));
    size_t length = PyUnicode_GET_LENGTH(filename);
    for (const std::string& prefix : skip_) {
      if (length <= prefix.size() || memcmp(text, prefix.data(), prefix.size()) != 0) continue;
      bool kept = false;
      for (const std::string& inner : keep_) {
        kept |= length - prefix.size() > inner.size() && !memcmp(text + prefix.size(), inner.data(), inner.size());
      }
      if (!kept) return true;
    }
    return false;
  }

  uint32_t number_of(PyCodeObject* code, int at, SlotRing& ring) {
    Entry wanted{code,
                 code->co_filename,
                 code->co_qualname,
                 code->co_linetable,
                 reinterpret_cast<PyASCIIObject*>(code->co_name)->hash,
                 at,
                 code->co_firstlineno,
                 0};
    uint64_t hash = (reinterpret_cast<uint64_t>(code) + static_cast<uint64_t>(at)) * 0x9E3779B97F4A7C15ULL;
    Entry& entry = entries_[hash >> 54];  // 10 bits: ENTRIES
    {
      Locked hold(lock_);
      if (entry.code == wanted.code && entry.at == wanted.at && entry.filename == wanted.filename &&
          entry.name == wanted.name && entry.line_table == wanted.line_table && entry.name_hash == wanted.name_hash &&
          entry.first_line == wanted.first_line) {
        return entry.number;
      }
    }
    wanted.number = ring.string(utf8(code->co_filename) + ":" + std::to_string(PyCode_Addr2Line(code, at)) + " " +
                                utf8(code->co_qualname));
    Locked hold(lock_);
    entry = wanted;
    return wanted.number;
  }

  static std::string utf8(PyObject* text) {
    std::string out;
    for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(text); i++) {
      Py_UCS4 c = PyUnicode_READ_CHAR(text, i);
      if (c < 0x80) {
        out += static_cast<char>(c);
      } else if (c < 0x800) {
        out += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
      } else if (c >= 0xD800 && c < 0xE000) {
        out += '?';  // half of a surrogate pair: a file name that is not UTF-8
      } else if (c < 0x10000) {
        out += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
                static_cast<char>(0x80 | (c & 0x3F))};
      } else {
        out += {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3F)),
                static_cast<char>(0x80 | (c >> 6 & 0x3F)), static_cast<char>(0x80 | (c & 0x3F))};
      }
    }
    return out;
  }
#else
  struct Entry {};
#endif

  static constexpr int ENTRIES = 1024;
  static constexpr int MOST_FRAMES = 64;
  SpinLock lock_;
  Entry entries_[ENTRIES];
  std::vector<std::string> skip_, keep_;
};

}  // namespace ranksight
