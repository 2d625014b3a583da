// `Work.wait` of Python, replaced by a method that also stamps wait_begin and wait_end.
#pragma once

#include <Python.h>
#include <pybind11/detail/common.h>

#include "tap.h"

namespace ranksight {

// Stamps the wait of one operation; made when the caller begins to wait, `end` when it goes on.
class Wait {
 public:
  explicit Wait(const void* waited) {
    if (!tap().active.load(std::memory_order_relaxed)) return;
    int64_t begin = now_ns();
    ticket_ = tap().works.take(waited);
    if (!ticket_) return;
    bounds_ = !(ticket_ & QUEUED_ONLY);
    ticket_ &= ~QUEUED_ONLY;
    ring_ = tap().ring;
    if (ring_->owns(ticket_) && !ring_->time_of(ticket_, COLLECTIVE_wait_begin_ns)) {
      ring_->stamp(ticket_, COLLECTIVE_wait_begin_ns, begin);
    }
    ring_->add(HEADER_tap_cost_ns, now_ns() - begin);
  }
  // Without a future the end of the wait is the best that is known: no later than this the operation was complete.
  void end(bool failed) {
    if (!ticket_) return;
    int64_t ns = now_ns();
    if (!ring_->stamp(ticket_, COLLECTIVE_wait_end_ns, ns)) return;
    if (failed) {
      ring_->change_flags(ticket_, FLAG_FAILED, 0);
    } else if (bounds_ && ring_->flags(ticket_) & FLAG_NO_COMPLETION) {
      ring_->stamp(ticket_, COLLECTIVE_complete_ns, ns);
      ring_->change_flags(ticket_, FLAG_UPPER_BOUND, FLAG_NO_COMPLETION);
    }
  }

 private:
  SlotRing* ring_ = nullptr;
  uint64_t ticket_ = 0;
  bool bounds_ = true;
};

inline PyObject* original_wait = nullptr;

inline PyObject* wait_method(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  auto* instance = reinterpret_cast<pybind11::detail::instance*>(self);
  Wait wait(instance->simple_layout ? instance->simple_value_holder[0] : nullptr);
  PyObject* all[8] = {self};
  Py_ssize_t total = count + (names ? PyTuple_GET_SIZE(names) : 0);
  if (total > 7) return PyErr_Format(PyExc_TypeError, "wait() takes at most 1 argument (%zd given)", total);
  for (Py_ssize_t i = 0; i < total; i++) all[i + 1] = arguments[i];
  PyObject* result = PyObject_Vectorcall(original_wait, all, count + 1, names);
  wait.end(!result);
  return result;
}

// A method descriptor for the class `work` that calls `original`: both keep their type checks and texts of errors.
inline PyObject* make_wait_method(PyObject* work, PyObject* original) {
  static PyMethodDef definition = {"wait", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&wait_method)),
                                   METH_FASTCALL | METH_KEYWORDS, nullptr};
  Py_INCREF(original);
  Py_XSETREF(original_wait, original);
  return PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(work), &definition);
}

}  // namespace ranksight
