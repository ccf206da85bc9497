// Products of eager programs, inside of `tuner.torch.use` or by `tuner.matmul`, without Python: what a product was
// once found to be, PyTorch's own or launches of a kernel, is looked up by all that may change it, and run. What is met
// for the first time, and what is out of the ordinary (autocast, gradients of kernels), goes to Python.
#include <torch/library.h>

#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/mm_ops.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#if __has_include(<Python.h>)
#include <torch/csrc/python_headers.h>
#endif

#include <array>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#if __has_include(<Python.h>)
// Of torch/csrc/autograd/python_variable.h, which takes as long to compile as all else here.
extern PyObject *THPVariableClass, *ParameterClass;
PyObject* THPVariable_Wrap(const at::TensorBase& tensor);
#endif

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using Words = std::vector<int64_t>;
using View = std::span<const int64_t>;

// Threads inside of a block include this key; see __init__.py.
constexpr DispatchKey INSIDE = DispatchKey::DeferredInit;
// Keys of tensors, and of threads, that products may have here; others are PyTorch's own: sparse, fake, of vmap.
const uint64_t CASTING = DispatchKeySet{DispatchKey::AutocastCUDA, DispatchKey::AutocastCPU}.raw_repr();
const uint64_t ORDINARY = DispatchKeySet{DispatchKey::BackendSelect, DispatchKey::ADInplaceOrView,
                                         DispatchKey::AutogradCUDA, DispatchKey::AutogradCPU, DispatchKey::CUDA,
                                         DispatchKey::CPU, INSIDE}.raw_repr() | CASTING;
// Where kernels may read, as tuner/python/arrays.py has it.
constexpr uintptr_t ALIGNMENT_BYTES = 16;

struct Launch {
  int64_t stream;
  uint64_t program;  // as tuner/devices/cuda/native.py lays it out
};

// What runs while a graph is captured, as eager.py has it: the same, PyTorch's own, or what Python says. Where it is
// not the same, PyTorch's own is as good for products with gradients.
enum { SAME, PYTORCHS, PYTHONS };

struct Way {
  int64_t epoch;                 // it is old where this is
  bool runs_kernel;              // else PyTorch's own product
  int64_t captured;
  int64_t* calls;                // to be counted, if any
  std::vector<int> places;       // of the kernel's tensors among those of the call; the result is behind them
  Words shape;                   // of the result
  std::vector<Launch> launches;  // one for each stream
};

// Of keys, also while they lie on the stack.
struct Hash {
  using is_transparent = void;
  size_t operator()(View words) const {
    size_t hash = words.size();
    for (int64_t word : words) hash = (hash ^ static_cast<size_t>(word)) * 0x9E3779B97F4A7C15u + (hash >> 29);
    return hash;
  }
};

struct Equal {
  using is_transparent = void;
  bool operator()(View one, View other) const {
    return one.size() == other.size() && std::equal(one.begin(), one.end(), other.begin());
  }
};

// Set by Python once: counters of what expires, and of all that holds in blocks: 0 where they differ.
const int64_t *expired, *policies, *held;
int64_t (*queue)(uint64_t program, uint64_t stream);
int (*is_capturing)(void* stream, int* status);
c10::DeviceType device_of_kernels;
std::mutex lock;  // of `ways`, and of the memory that launches are written into; no one waits for the GIL with it
std::unordered_map<Words, Way, Hash, Equal> ways;
// What this thread asked Python for, which may answer by `tuner_keep`.
thread_local Words asked;

enum class By { PYTORCH, PYTHON, KERNEL };

// The tensors of a call, as its key and as addresses.
struct Call {
  const Tensor* first = nullptr;
  Tensor* out = nullptr;
  bool is_product = true, has_gradients = false, is_cast = false;
  size_t tensors = 0, words = 0;
  std::array<int64_t, 64> key;
  std::array<uint64_t, 5> starts, ends;  // of memory; the result is the last

  void add(const Tensor& one) {
    first = first ? first : &one;
    is_product = is_product && !(one.key_set().raw_repr() & ~ORDINARY) && !one._fw_grad(0).defined();
    is_product = is_product && one.device() == first->device() && words + 2 * one.dim() + 4 < key.size();
    if (!is_product) return;
    is_cast = is_cast || one.scalar_type() != first->scalar_type();
    has_gradients = has_gradients || one.requires_grad();
    uint64_t start = reinterpret_cast<uint64_t>(one.const_data_ptr()), end = one.numel() > 0;
    key[words++] = one.dim() << 8 | (start % ALIGNMENT_BYTES == 0);
    for (int64_t axis = 0; axis < one.dim(); ++axis) {
      key[words++] = one.sizes()[axis];
      key[words++] = one.strides()[axis];
      end += (one.sizes()[axis] - 1) * one.strides()[axis];
    }
    starts[tensors] = start;
    ends[tensors++] = start + end * one.element_size();
  }
  void add(Tensor& one) { add(std::as_const(*(out = &one))); }
  void add(const std::optional<Tensor>& one) {
    key[words++] = one.has_value();
    if (one.has_value()) add(*one);
  }
  void add(const c10::Scalar& factor) { is_product = is_product && factor.equal(1); }

  bool overlaps() const {
    for (size_t at = 0, last = tensors - 1; at < last; ++at)
      if (starts[last] < ends[at] && starts[at] < ends[last]) return true;
    return false;
  }
};

// By what a product is run; by a kernel it has been then, into `result`. What holds is negative in `tuner.matmul`.
By run(Call& call, Tensor& result, int64_t holds) {
  bool is_direct = holds < 0;
  auto python = [&](bool may_answer) {
    asked.assign(call.key.begin(), call.key.begin() + (may_answer ? call.words : 0));
    return By::PYTHON;
  };
  bool is_ours = call.is_product && at::isFloatingType(call.first->scalar_type());
  if (is_ours && !holds) return python(false);
  if (!is_ours || call.first->device().type() != device_of_kernels) return is_direct ? python(false) : By::PYTORCH;
  c10::Device device = call.first->device();
  if (call.is_cast) return python(false);
  call.key[call.words++] = holds;
  int64_t dtype = static_cast<int64_t>(call.first->scalar_type());
  call.key[call.words++] = dtype << 8 | static_cast<uint8_t>(device.index());
  std::lock_guard<std::mutex> guard(lock);
  c10::impl::VirtualGuardImpl guarded(device.type());
  bool has_streams = device.type() != c10::DeviceType::CPU;
  auto current = [&] { return has_streams ? guarded.getStream(device).native_handle() : nullptr; };
  auto is_captured = [&](void* stream) {
    int status = 0;
    return has_streams && (is_capturing(stream, &status) || status);
  };
  auto found = ways.find(View(call.key.data(), call.words));
  bool learns = call.has_gradients && at::GradMode::is_enabled();
  // What runs while a graph is captured tells nothing of what runs elsewhere.
  if (found == ways.end() || found->second.epoch != *expired + *policies)
    return python(!is_captured(current()) && !(is_direct && learns));
  Way& way = found->second;
  if (is_direct && call.out && call.overlaps()) return python(false);
  if (learns && way.runs_kernel && way.captured == SAME) return python(false);  // which knows gradients of kernels
  bool is_own = learns || !way.runs_kernel;
  if (is_own && way.captured != PYTHONS) {
    if (way.calls) ++*way.calls;
    return By::PYTORCH;
  }
  void* stream = current();
  if (way.captured != SAME && is_captured(stream)) return way.captured == PYTHONS ? python(false) : By::PYTORCH;
  if (is_own) return By::PYTORCH;
  if (guarded.getDevice() != device && has_streams) return python(false);
  if (call.out && call.overlaps()) return python(false);
  for (Launch& launch : way.launches) {
    if (launch.stream != reinterpret_cast<int64_t>(stream)) continue;
    if (!call.out) result = at::empty(way.shape, call.first->options());
    Tensor& to = call.out ? *call.out : result;
    call.starts[call.tensors - (call.out ? 1 : 0)] = reinterpret_cast<uint64_t>(to.mutable_data_ptr());
    uint64_t* addresses = *reinterpret_cast<uint64_t**>(launch.program);
    for (size_t at = 0; at < way.places.size(); ++at) addresses[at] = call.starts[way.places[at]];
    if (queue(launch.program, reinterpret_cast<uint64_t>(stream))) return python(false);
    if (way.calls) ++*way.calls;
    return By::KERNEL;
  }
  return python(true);
}

// An operator of PyTorch inside of a block.
template <class Operator, class Schema = typename Operator::schema>
struct Inside;

template <class Operator, class Result, class... Given>
struct Inside<Operator, Result(Given...)> {
  static inline int64_t number;
  static inline const char* in_python;

  static Result called(DispatchKeySet keys, Given... given) {
    Call call;
    call.key[call.words++] = number;
    call.is_product = !(keys.raw_repr() & ~ORDINARY);
    call.is_cast = keys.raw_repr() & CASTING;
    (call.add(given), ...);
    Tensor result;
    By by = run(call, result, *held);
    if (by == By::KERNEL) {
      if constexpr (std::is_reference_v<Result>) return *call.out;
      else return result;
    }
    if (by == By::PYTHON) {
      static auto named = c10::Dispatcher::singleton().findSchemaOrThrow(in_python, "");
      static auto python = named.template typed<Result(Given...)>();
      return python.call(given...);
    }
    c10::impl::ExcludeDispatchKeyGuard outside(INSIDE);
    return Operator::redispatch(keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, INSIDE), given...);
  }
};

template <class Operator>
void replace(torch::Library& library, const char* name, const char* in_python) {
  Inside<Operator>::number = reinterpret_cast<int64_t>(&Inside<Operator>::number);
  Inside<Operator>::in_python = in_python;
  library.impl(name, TORCH_FN(Inside<Operator>::called));
}

#if __has_include(<Python.h>)
// A tensor of Python's as it begins; `tuner_multiply` asks whether it does.
struct Object {
  PyObject_HEAD
  Tensor tensor;
};

const Tensor& tensor_of(PyObject* object) { return reinterpret_cast<Object*>(object)->tensor; }

bool is_plain(PyObject* object) {
  auto type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  return type == THPVariableClass || type == ParameterClass;
}

// `tuner.matmul` of two tensors, `out` or None, and what holds: the result; None where Python is to run it.
PyObject* multiply(PyObject*, PyObject* const* given, Py_ssize_t) {
  asked.clear();
  PyObject* out = given[2] == Py_None ? nullptr : given[2];
  if (!is_plain(given[1]) || (out && !is_plain(out))) Py_RETURN_NONE;
  // Copies, as the second reference to a tensor takes the GIL.
  const Tensor a = tensor_of(given[0]), b = tensor_of(given[1]);
  int64_t holds = PyLong_AsLongLong(given[3]);
  Tensor result = out ? tensor_of(out) : Tensor();
  By by = By::PYTHON;
  Py_BEGIN_ALLOW_THREADS  // who waits for the lock has no GIL
  try {
    Call call;
    c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
    call.key[call.words++] = out ? Inside<at::_ops::matmul_out>::number : Inside<at::_ops::matmul>::number;
    call.is_product = !(local.included_.raw_repr() & ~ORDINARY);
    call.is_cast = ((a.key_set() | local.included_) - local.excluded_).raw_repr() & CASTING;
    call.add(a), call.add(b);
    if (out) call.add(result);
    by = run(call, result, holds);
    if (by == By::PYTORCH) {
      c10::impl::ExcludeDispatchKeyGuard outside(INSIDE);
      if (out) at::_ops::matmul_out::call(a, b, result);
      else result = at::_ops::matmul::call(a, b);
    }
  } catch (const std::exception&) {
    by = By::PYTHON;  // which raises it again
  }
  Py_END_ALLOW_THREADS
  if (by == By::PYTHON) {
    PyErr_Clear();  // of a hook for gradients
    Py_RETURN_NONE;
  }
  return out ? Py_NewRef(out) : THPVariable_Wrap(result);
}

PyMethodDef MULTIPLY = {"multiply", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(multiply)),
                        METH_FASTCALL, nullptr};
#endif

}  // namespace

TORCH_LIBRARY_IMPL(aten, DeferredInit, library) {
  replace<at::_ops::mm>(library, "mm", "tuner::eager_mm");
  replace<at::_ops::bmm>(library, "bmm", "tuner::eager_bmm");
  replace<at::_ops::addmm>(library, "addmm", "tuner::eager_addmm");
  replace<at::_ops::linear>(library, "linear", "tuner::eager_linear");
  replace<at::_ops::matmul>(library, "matmul", "tuner::eager_matmul");
  replace<at::_ops::matmul_out>(library, "matmul.out", "tuner::eager_matmul_out");
  replace<at::_ops::mm_out>(library, "mm.out", "tuner::eager_mm_out");
  replace<at::_ops::bmm_out>(library, "bmm.out", "tuner::eager_bmm_out");
  replace<at::_ops::addmm_out>(library, "addmm.out", "tuner::eager_addmm_out");
}

extern "C" {

// Says where Python's numbers are, what queues launches, what asks whether a stream is captured; and the type of
// device that kernels run on.
void tuner_begin(const uint64_t* addresses, int device_type) {
  std::lock_guard<std::mutex> guard(lock);
  expired = reinterpret_cast<const int64_t*>(addresses[0]);
  policies = reinterpret_cast<const int64_t*>(addresses[1]);
  held = reinterpret_cast<const int64_t*>(addresses[2]);
  queue = reinterpret_cast<decltype(queue)>(addresses[3]);
  is_capturing = reinterpret_cast<decltype(is_capturing)>(addresses[4]);
  device_of_kernels = static_cast<c10::DeviceType>(device_type);
}

#if __has_include(<Python.h>)
// `multiply`, as Python calls it; None where a tensor, whose data Python says, does not begin as is thought here.
PyObject* tuner_multiply(PyObject* tensor, const void* data) {
  if (tensor_of(tensor).unsafeGetTensorImpl() != data) Py_RETURN_NONE;
  return PyCFunction_New(&MULTIPLY, nullptr);
}
#endif

// Whether this thread asked Python for a product that may be kept.
int tuner_asks() { return !asked.empty(); }

// Keeps how the product is run that this thread asked Python for, if what holds is the same still. Words: what holds,
// the epoch, the fields of `Way` up to `calls`, the launch, how many places; places and the shape follow.
void tuner_keep(const int64_t* words, int64_t count) {
  const int64_t *places = words + 8, *shape = places + words[7];
  if (asked.empty() || asked[asked.size() - 2] != words[0]) return;
  std::lock_guard<std::mutex> guard(lock);
  if (ways.size() >= 4096) ways.clear();
  Way& way = ways[asked];
  if (way.epoch != words[1]) way.launches.clear();
  way.epoch = words[1], way.runs_kernel = words[2], way.captured = words[3];
  way.calls = reinterpret_cast<int64_t*>(words[4]);
  way.places.assign(places, shape), way.shape.assign(shape, words + count);
  if (way.runs_kernel) way.launches.push_back({words[5], static_cast<uint64_t>(words[6])});
}

// Forgets launches whose memory goes.
void tuner_drop(uint64_t program) {
  std::lock_guard<std::mutex> guard(lock);
  for (auto& [key, way] : ways)
    for (size_t at = way.launches.size(); at-- > 0;)
      if (way.launches[at].program == program) way.launches.erase(way.launches.begin() + at);
}
}
