// The native tap: a boxed kernel in front of every c10d op, at dispatch key BackendSelect.
//
//   dist.all_reduce, DDP's reducer, FSDP2, functional collectives, compiled code, any thread
//     -> dispatcher -> kernel: slot written and published -> the backend's own kernel
//                        |                                      | Work, or an exception
//                        +-- stamps: return, completion, wait <-+
//
// Positions of arguments come from the schemas of the running torch. The kernel runs without the GIL. What fails here
// is counted in tap_errors and never reaches the caller; what the op throws passes through unchanged.

#include <c10/util/SmallVector.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "tap.h"
#include "waits.h"

namespace ranksight {
namespace {

const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
Positions positions[NUM_OPS];
torch::Library* c10d_kernels = nullptr;
torch::Library* functional_kernels = nullptr;

// What is known of a call between its begin and its end.
struct Call {
  SlotRing* ring;
  uint64_t ticket = 0;  // 0: not recorded
  uint64_t cost_scale = 0;  // times the cost counts; 0: not measured
  bool on_cpu = true;
  c10::SmallVector<const void*, 8> written;
};

void write_values(SlotRing* ring, uint64_t index, const std::vector<int64_t>& values) {
  char* slot = ring->slot(index);
  size_t inline_values = std::min<size_t>(values.size(), COLLECTIVE_VALUES);
  if (inline_values) memcpy(slot + COLLECTIVE_values, values.data(), inline_values * 8);
  for (size_t at = inline_values; at < values.size(); at += COLLECTIVE_EXTRA_VALUES) {
    index++;
    size_t n = std::min<size_t>(values.size() - at, COLLECTIVE_EXTRA_VALUES);
    memcpy(ring->slot(index) + 8, values.data() + at, n * 8);
    ring->publish(index);
  }
}

Group* group_of(SlotRing* ring, const c10::IValue& value) {
  auto* process_group = custom<c10d::ProcessGroup>(value);
  if (!process_group) return nullptr;
  const std::string& name = process_group->getGroupName();
  Group* group = tap().groups.find(process_group, name);
  if (group) return group;
  return tap().groups.add(process_group, name, process_group->getGroupDesc(), process_group->getSize(),
                          process_group->getRank(), *ring);
}

void begin(int op, const c10::IValue* arguments, int64_t entered, Call& call) {
  const Positions& where = positions[op];
  const Traits& traits = TRAITS[op];
  SlotRing* ring = call.ring;
  Group* group = group_of(ring, arguments[where.group]);
  if (!group) {
    ring->add(HEADER_tap_errors, 1);
    return;
  }
  int32_t peer = where.peer >= 0 ? static_cast<int32_t>(arguments[where.peer].toInt()) : -1;
  int32_t tag = where.tag >= 0 ? static_cast<int32_t>(arguments[where.tag].toInt()) : 0;
  bool full = false;
  uint64_t sequence = traits.p2p ? group->p2p_sequence(traits.p2p, peer, tag, full) : group->sequence();
  if (full) ring->add(HEADER_tap_errors, 1);

  uint32_t detail = ring->header<uint32_t>(HEADER_detail);
  if (detail == DETAIL_COUNTERS || (detail == DETAIL_SAMPLED && sequence % SAMPLE_EVERY)) {
    uint64_t skipped = __atomic_fetch_add(&ring->header<uint64_t>(HEADER_collectives_skipped), 1, __ATOMIC_RELAXED);
    call.cost_scale = skipped % SAMPLE_EVERY ? 0 : SAMPLE_EVERY;
    return;
  }
  call.cost_scale = 1;

  Payload payload;
  if (where.payload >= 0) payload.read(arguments[where.payload]);
  if (where.device >= 0) {
    each_tensor(arguments[where.device], [&](const at::Tensor& tensor) {
      call.on_cpu = tensor.is_cpu();
      return false;
    });
  }
  uint16_t flags = 0;
  if (where.async >= 0 && arguments[where.async].toBool()) {
    flags |= FLAG_ASYNC;
    if (where.written >= 0) {
      each_tensor(arguments[where.written], [&](const at::Tensor& tensor) {
        if (tensor.has_storage()) call.written.push_back(tensor.storage().unsafeGetStorageImpl());
        return true;
      });
    }
  }
  uint8_t reduce_op = 255;
  if (where.reduce_op >= 0) {
    if (auto* reduce = custom<c10d::ReduceOp>(arguments[where.reduce_op])) reduce_op = reduce->op_;
  }

  size_t dims = std::min<size_t>(payload.shape.size(), COLLECTIVE_VALUES);
  size_t sends = 0, receives = 0, extra = 0;
  std::vector<int64_t> values;
  if (where.send_splits >= 0) {
    values.assign(payload.shape.begin(), payload.shape.begin() + dims);
    read_splits(arguments[where.send_splits], values);
    sends = values.size() - dims;
    if (where.recv_splits >= 0) read_splits(arguments[where.recv_splits], values);
    receives = values.size() - dims - sends;
    size_t most = std::min<size_t>(255, ring->slots() / 4) * COLLECTIVE_EXTRA_VALUES + COLLECTIVE_VALUES;
    if (values.size() > most) {
      flags |= FLAG_TRUNCATED;
      values.resize(most);
      sends = std::min(sends, most - dims);
      receives = most - dims - sends;
    }
    if (values.size() > COLLECTIVE_VALUES) {
      extra = (values.size() - COLLECTIVE_VALUES + COLLECTIVE_EXTRA_VALUES - 1) / COLLECTIVE_EXTRA_VALUES;
    }
  }

  uint64_t index = ring->reserve(extra);
  char* slot = ring->slot(index);
  memset(slot + COLLECTIVE_enqueue_ns, 0, COLLECTIVE_values - COLLECTIVE_enqueue_ns);
  if (values.empty()) {
    if (dims) memcpy(slot + COLLECTIVE_values, payload.shape.data(), dims * 8);
  } else {
    write_values(ring, index, values);
  }
  field<int64_t>(slot, COLLECTIVE_enqueue_ns) = entered;
  field<uint64_t>(slot, COLLECTIVE_group_seq) = sequence;
  field<uint64_t>(slot, COLLECTIVE_bytes) = payload.bytes * (traits.times_size ? group->size : 1);
  if (traits.agrees) {
    field<uint64_t>(slot, COLLECTIVE_fingerprint) =
        fingerprint(op + 1, reduce_op, peer, payload.dtype, static_cast<int64_t>(payload.numel));
  }
  field<int64_t>(slot, COLLECTIVE_step) = ring->header<int64_t>(HEADER_step);
  field<uint32_t>(slot, COLLECTIVE_group) = group->number;
  field<uint32_t>(slot, COLLECTIVE_call_site) = tap().sites.current(*ring);
  field<uint32_t>(slot, COLLECTIVE_thread) = thread_id();
  field<int32_t>(slot, COLLECTIVE_peer) = peer;
  field<int32_t>(slot, COLLECTIVE_tag) = tag;
  field<int32_t>(slot, COLLECTIVE_microbatch) = ring->header<int32_t>(HEADER_microbatch);
  field<uint16_t>(slot, COLLECTIVE_op) = static_cast<uint16_t>(op + 1);
  field<uint8_t>(slot, COLLECTIVE_reduce_op) = reduce_op;
  field<uint8_t>(slot, COLLECTIVE_dtype) = payload.dtype;
  field<uint16_t>(slot, COLLECTIVE_phase) = static_cast<uint16_t>(ring->header<uint32_t>(HEADER_phase));
  field<uint16_t>(slot, COLLECTIVE_flags) = flags;
  field<uint8_t>(slot, COLLECTIVE_n_dims) = static_cast<uint8_t>(dims);
  field<uint8_t>(slot, COLLECTIVE_n_extra) = static_cast<uint8_t>(extra);
  field<uint16_t>(slot, COLLECTIVE_n_send) = static_cast<uint16_t>(sends);
  field<uint16_t>(slot, COLLECTIVE_n_recv) = static_cast<uint16_t>(receives);
  field<uint16_t>(slot, COLLECTIVE_stage) = static_cast<uint16_t>(ring->header<int32_t>(HEADER_stage) + 1);
  field<uint64_t>(slot, COLLECTIVE_numel) = payload.numel;
  ring->publish(index);
  ring->add(HEADER_collectives_count, 1);
  call.ticket = index + 1;
}

void end(int op, torch::jit::Stack* stack, int64_t returned, const Call& call) {
  const Positions& where = positions[op];
  call.ring->stamp(call.ticket, COLLECTIVE_return_ns, returned);
  if (where.work < 0) {  // monitored_barrier: it blocks in the call
    call.ring->stamp(call.ticket, COLLECTIVE_complete_ns, returned);
    return;
  }
  auto* work = custom<c10d::Work>((*stack)[stack->size() - where.returns + where.work]);
  if (work) {
    uint64_t waited = call.on_cpu ? call.ticket : call.ticket | QUEUED_ONLY;
    tap().works.put(work, waited);
    for (const void* storage : call.written) tap().works.put(storage, waited);
  }
  if (!work || !call.on_cpu || !tap().futures.watch(*work, call.ring, call.ticket)) {
    call.ring->change_flags(call.ticket, FLAG_NO_COMPLETION, 0);
  }
}

template <class F>
void guarded(SlotRing* ring, F&& body) {
  try {
    body();
  } catch (...) {
    ring->add(HEADER_tap_errors, 1);
  }
}

void run(int op, const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::IValue* arguments = stack->data() + stack->size() - positions[op].arguments;
  int device = positions[op].device;
  if (!tap().active.load(std::memory_order_acquire) || (device >= 0 && is_imaginary(arguments[device]))) {
    handle.redispatchBoxed(keys & below, stack);
    return;
  }
  int64_t entered = now_ns();
  Call call{tap().ring};
  guarded(call.ring, [&] { begin(op, arguments, entered, call); });
  int64_t cost = call.cost_scale ? now_ns() - entered : 0;
  if (!call.ticket) {
    if (cost) call.ring->add(HEADER_tap_cost_ns, cost * call.cost_scale);
    handle.redispatchBoxed(keys & below, stack);
    return;
  }
  try {
    handle.redispatchBoxed(keys & below, stack);
  } catch (...) {
    call.ring->stamp(call.ticket, COLLECTIVE_return_ns, now_ns());
    call.ring->change_flags(call.ticket, FLAG_FAILED, 0);
    throw;
  }
  int64_t returned = now_ns();
  guarded(call.ring, [&] { end(op, stack, returned, call); });
  call.ring->add(HEADER_tap_cost_ns, cost + now_ns() - returned);
}

template <int OP>
void kernel(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  run(OP, handle, keys, stack);
}

// C++ waits for functional collectives, with the tensor in place of the Work.
void wait_tensor(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::IValue& value = stack->back();
  bool real = value.isTensor() && value.toTensor().defined() && value.toTensor().has_storage() && !is_imaginary(value);
  Wait wait(real ? value.toTensor().storage().unsafeGetStorageImpl() : nullptr);
  try {
    handle.redispatchBoxed(keys & below, stack);
  } catch (...) {
    wait.end(true);
    throw;
  }
  wait.end(false);
}

template <int OP>
void add_kernels(torch::Library& library, std::string& missing) {
  if constexpr (OP < NUM_OPS) {
    auto handle = c10::Dispatcher::singleton().findSchema({std::string("c10d::") + OP_NAMES[OP], ""});
    if (handle) positions[OP] = Positions(handle->schema(), TRAITS[OP]);
    if (handle && positions[OP].group >= 0) {
      library.impl(OP_NAMES[OP], torch::CppFunction::makeFromBoxedFunction<&kernel<OP>>());
    } else {
      missing += missing.empty() ? OP_NAMES[OP] : std::string(" ") + OP_NAMES[OP];
    }
    add_kernels<OP + 1>(library, missing);
  }
}

std::vector<std::string> lines(const char* text) {
  std::vector<std::string> out;
  for (const char* end; (end = strchr(text, '\n')); text = end + 1) out.emplace_back(text, end);
  return out;
}

void copy_text(const std::string& text, char* out, size_t size) { snprintf(out, size, "%s", text.c_str()); }

}  // namespace
}  // namespace ranksight

#define RANKSIGHT_API extern "C" __attribute__((visibility("default")))

// Starts to record into the ring file `path`. `skip` and `keep` are for call sites (see CallSites::configure),
// each ended by a newline. 0 when the tap is in place; `message` then names ops that this torch does not have.
// -1 when it is not, with the reason in `message`.
RANKSIGHT_API int ranksight_install(const char* path, const char* skip, const char* keep, char* message, size_t size) {
  using namespace ranksight;
  static const int at_fork = pthread_atfork(nullptr, nullptr, [] { tap().after_fork_in_child(); });
  std::string text;
  try {
    Tap& state = tap();
    if (at_fork != 0 || state.active) throw std::runtime_error(at_fork ? "pthread_atfork failed" : "already installed");
    auto* ring = new SlotRing();
    if (!ring->map(path, text)) throw std::runtime_error(text);
    new (&state.works) PointerMap();
    state.groups.forget(nullptr);
    if (state.path != path) new (&state.groups) Groups();  // incarnations count within one file
    state.sites.configure(lines(skip), lines(keep));
    state.ring = ring;
    state.path = path;
    if (!c10d_kernels) {
      auto key = std::make_optional(c10::DispatchKey::BackendSelect);
      auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "c10d", key, __FILE__, __LINE__);
      add_kernels<0>(*library, text);
      auto waits = std::make_unique<torch::Library>(torch::Library::IMPL, "_c10d_functional", key, __FILE__, __LINE__);
      waits->impl("wait_tensor", torch::CppFunction::makeFromBoxedFunction<&wait_tensor>());
      c10d_kernels = library.release();
      functional_kernels = waits.release();
    }
    state.active.store(true, std::memory_order_release);
    state.start_heartbeat();
  } catch (const std::exception& error) {
    copy_text(error.what(), message, size);
    return -1;
  }
  copy_text(text, message, size);
  return 0;
}

// Takes the kernels out again. Operations in flight still get their times.
RANKSIGHT_API void ranksight_remove() {
  using namespace ranksight;
  tap().active = false;
  tap().beating = false;
  delete c10d_kernels;
  delete functional_kernels;
  c10d_kernels = functional_kernels = nullptr;
}

RANKSIGHT_API void ranksight_forget_groups(const char* name) { ranksight::tap().groups.forget(name); }

// A new reference to a method for the class `work`; needs the GIL.
RANKSIGHT_API PyObject* ranksight_wait_method(PyObject* work, PyObject* original) {
  return ranksight::make_wait_method(work, original);
}
