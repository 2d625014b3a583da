// From the arguments of one op to the descriptive half of its slot. Only metadata is read, no torch op is called.
#pragma once

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "pointer_map.h"

namespace ranksight {

// Positions of the arguments that TRAITS names, in the schema of the running torch; -1 when there is none.
struct Positions {
  int arguments = 0, payload = -1, group = -1, reduce_op = -1, peer = -1, tag = -1, async = -1, written = -1;
  int send_splits = -1, recv_splits = -1, device = -1;
  int work = -1;     // among the returns
  int returns = 0;

  explicit Positions(const c10::FunctionSchema& schema, const Traits& traits) {
    arguments = static_cast<int>(schema.arguments().size());
    returns = static_cast<int>(schema.returns().size());
    auto find = [&](const char* name) { return *name ? schema.argumentIndexWithName(name).value_or(-1) : -1; };
    payload = find(traits.payload);
    written = find(traits.written);
    peer = find(traits.peer);
    send_splits = find(traits.send_splits);
    recv_splits = find(traits.recv_splits);
    group = find("process_group");
    reduce_op = find("reduce_op");
    tag = find("tag");
    async = find("async_op");
    device = payload >= 0 ? payload : find("tensor");
    for (int i = 0; i < returns; i++) {
      if (schema.returns()[i].type()->str().find("c10d.Work") != std::string::npos) work = i;
    }
  }
  Positions() = default;
};

// Calls `use` for each defined tensor of a Tensor, Tensor[] or Tensor[][]; it returns false to stop.
template <class F>
bool each_tensor(const c10::IValue& value, F&& use) {
  if (value.isTensor()) return !value.toTensor().defined() || use(value.toTensor());
  if (value.isList()) {
    for (const c10::IValue& inner : value.toListRef()) {
      if (!each_tensor(inner, use)) return false;
    }
  }
  return true;
}

inline uint64_t bytes_of(const at::Tensor& tensor) {
  if (tensor.layout() == c10::kSparse) {
    auto* sparse = static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
    return sparse->values().nbytes() + sparse->indices().nbytes();
  }
  return tensor.layout() == c10::kStrided ? tensor.nbytes() : 0;
}

// Tensors that only stand for real ones (tracing, compilation): nothing is communicated.
inline bool is_imaginary(const c10::IValue& value) {
  bool imaginary = false;
  each_tensor(value, [&](const at::Tensor& tensor) {
    imaginary = tensor.is_meta() || tensor.key_set().has(c10::DispatchKey::Python);
    return false;
  });
  return imaginary;
}

struct Payload {
  uint64_t bytes = 0, numel = 0;
  uint8_t dtype = 255;
  c10::IntArrayRef shape;

  void read(const c10::IValue& value) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      if (dtype == 255) {
        dtype = static_cast<uint8_t>(tensor.scalar_type());
        shape = tensor.sizes();
      }
      numel += tensor.numel();
      bytes += bytes_of(tensor);
      return true;
    });
  }
};

// Rows for each peer: given as int[], or as the first size of each tensor of a list.
inline void read_splits(const c10::IValue& value, std::vector<int64_t>& out) {
  if (value.isIntList()) {
    for (const c10::IValue& rows : value.toListRef()) out.push_back(rows.toInt());
  } else {
    each_tensor(value, [&](const at::Tensor& tensor) {
      out.push_back(tensor.dim() ? tensor.size(0) : 1);
      return true;
    });
  }
}

inline uint64_t fingerprint(int64_t op, int64_t reduce_op, int64_t root, int64_t dtype, int64_t numel) {
  uint64_t value = 0xCBF29CE484222325ULL;
  for (int64_t word : {op, reduce_op, root, dtype, numel}) {
    value = (value ^ static_cast<uint64_t>(word)) * 0x100000001B3ULL;
    value ^= value >> 32;
  }
  return value ? value : 1;
}

// The C++ object behind a custom class argument, without touching its reference count more than once.
template <class T>
T* custom(const c10::IValue& value) {
  if (!value.isObject()) return nullptr;
  const c10::IValue& slot = value.toObjectRef().getSlot(0);
  return slot.isCapsule() ? static_cast<T*>(slot.toCapsule().get()) : nullptr;
}

}  // namespace ranksight
