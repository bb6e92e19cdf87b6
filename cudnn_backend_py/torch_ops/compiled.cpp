// What an operator of torch does when its plan is there already, in one compiled step: find the plan by what the tensors
// look like, allocate the outputs, launch, remember for the backward pass.
//
// extension.py compiles it against the torch that is installed, compiled.py teaches it plans that ran in Python.
// Whatever it was not taught, or is not plain eager execution, it answers with None: Python does it.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/custom_function.h>
#include <ATen/Context.h>
#include <ATen/DLConvertor.h>
#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "call_key.h"
#include "fast_call.h"

namespace {

using torch::autograd::variable_list;

constexpr int kTensors = 12;  // of an operator, at most
constexpr int kScalars = 16;
constexpr int kDifferentiable = 5;
constexpr int kPieces = 24;
constexpr size_t kPlans = 2048;
constexpr int64_t kMostBytes = int64_t{1} << 56;  // of a piece of memory; the sum of all is a number, too

struct Python {  // a reference to an object of Python
  PyObject* object = nullptr;
  explicit Python(PyObject* stolen = nullptr) : object(stolen) {}
  Python(const Python&) = delete;
  Python& operator=(const Python&) = delete;
  ~Python() { Py_XDECREF(object); }
  explicit operator bool() const { return object != nullptr; }
};

using Numbers = c10::SmallVector<Number, 4>;

struct Output {
  at::ScalarType type;
  Numbers dims, strides;
  std::optional<double> filled;  // with this, first
};

struct Place {  // what is written: an address, or a number
  enum Kind : int { input, output, piece, number };
  int at;  // the word it is written to
  int kind, index;
  Number number_or_offset;
};

struct Limits {  // of the slots
  struct Range {
    int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
    bool operator==(const Range& other) const { return least == other.least && most == other.most; }
  };
  std::array<Range, kSlots> ranges;

  bool hold(const Slots& slots) const {
    for (int slot = 0; slot < kSlots; ++slot)
      if (slots.values[slot] < ranges[slot].least || slots.values[slot] > ranges[slot].most) return false;
    return true;
  }
};

struct Plan {  // of one operator, thread and stream
  call* target = nullptr;
  int64_t* prepared = nullptr;  // the parameters of the kernel before it
  std::vector<Output> outputs;
  std::vector<Place> row, parameters;
  Numbers pieces;              // of the workspace, in bytes; none if it is kept
  int own_piece = -1;          // which the plan itself uses
  uint64_t copied = 0;         // the inputs that are copied first, as bits
  bool tokens_first = false;   // copies of [b, h, s, d] are [b, s, h, d] in memory
  int64_t token = 0, cost = 0;
  bool is_backward = false;
  bool keeps_tables = false;   // what the kernel before it wrote stays: it need not run again with the same parameters
  bool is_prepared = false;    // whether it ran with those that are there
  PyObject* notice = nullptr;  // to be told of calls, if anything
  std::array<int64_t, 3> shape = {};  // the last one that was told
  int64_t untold = 0, silent = 0;     // calls of it since, and how many more need not be told
  PyObject* holds = nullptr;
  std::weak_ptr<const int64_t> owner;  // its thread
  std::atomic<int64_t> used{0};
  std::atomic<int> running{0};

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_XDECREF(notice);
    Py_XDECREF(holds);
    PyGILState_Release(state);
  }
};

// The plans of one key, cheapest first. A pass of another thread finds none of this in its caches, and a key may have a
// hundred classes: so it is compared once, and what tells them apart lies in one piece.
struct Group {
  std::vector<uint64_t> key;
  std::vector<Limits> limits;
  std::vector<std::shared_ptr<Plan>> plans;

  bool is_of(const Key& other) const {
    return int(key.size()) == other.count && std::equal(key.begin(), key.end(), other.words.begin());
  }
};

struct Operator {
  int tensors = 0;
  std::vector<int> differentiable;  // inputs
  uint64_t optional = 0;            // those whose gradient is made only if wanted, as bits
  std::vector<Loose> loose[2];      // forward, backward
  bool is_class = false;            // of dense tensors: calls share what their class has in common
  int shared = -1;                  // the operator for the class of a call that has no plan of its own here

  bool is_optional(int index) const { return optional >> index & 1; }
};

std::vector<Operator> operators;
std::mutex mutex;
using Groups = std::unordered_multimap<uint64_t, Group>;
Groups& groups = *new Groups;  // never destroyed: at exit there may be no Python to release what they hold
size_t plan_count = 0;
std::atomic<int64_t> calls{0};
std::atomic<int64_t> threads{1};
thread_local const std::shared_ptr<const int64_t> thread = std::make_shared<const int64_t>(threads++);

int (*go)(call*);
int32_t (*current_stream)(int32_t device, void** stream);
int (*stream_is_capturing)(void* stream, int* status);
PyObject* backward_in_python;
c10::DeviceType device_type;
c10::DispatchKeySet device_keys;
c10::DispatchKeySet plain_keys;  // of tensors that are what they seem

// Whether nothing but plain eager execution could see what happens to tensors of such a type.
bool is_quiet(at::ScalarType type) {
  const c10::DispatchKeySet usual({c10::DispatchKey::BackendSelect, c10::DispatchKey::ADInplaceOrView});
  const auto local = c10::impl::tls_local_dispatch_key_set();
  return (local.included_ | usual) == usual && !at::impl::torch_function_mode_enabled() &&
         (!at::autocast::is_autocast_enabled(device_type) || at::autocast::get_autocast_dtype(device_type) == type);
}

// Whether a tensor is what it seems: of no other layout, not wrapped, without a tangent.
bool is_plain(const Tensor& t) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(t);
  return (t.key_set() | plain_keys) == plain_keys && (meta == nullptr || meta->fw_grad_ == nullptr);
}

// A thread without a context captures nothing; the statuses are CUDA_ERROR_STREAM_CAPTURE_*.
bool is_capturing(void* stream) {
  int found = 0;
  const int status = stream_is_capturing == nullptr ? 0 : stream_is_capturing(stream, &found);
  return found != 0 || (status >= 900 && status < 910);
}

// A plan that is about to run: it is not forgotten meanwhile.
class Found {
  std::shared_ptr<Plan> plan_;

 public:
  Found() = default;
  explicit Found(std::shared_ptr<Plan> plan) : plan_(std::move(plan)) { ++plan_->running; }
  Found(Found&& other) noexcept = default;
  Found& operator=(Found&&) = delete;
  ~Found() {
    if (plan_ != nullptr) --plan_->running;
  }
  explicit operator bool() const { return plan_ != nullptr; }
  Plan& operator*() const { return *plan_; }
  Plan* get() const { return plan_.get(); }
};

// The group of a key, or none; under the lock.
Group* group_of(const Key& key, uint64_t hash) {
  for (auto [at, end] = groups.equal_range(hash); at != end; ++at)
    if (at->second.is_of(key)) return &at->second;
  return nullptr;
}

Found find(const Key& key, const Slots& slots) {
  if (!key.whole || !slots.agree) return {};
  const uint64_t hash = key.hash();
  const std::lock_guard<std::mutex> locked(mutex);
  if (const Group* group = group_of(key, hash))
    for (size_t index = 0; index < group->limits.size(); ++index)
      if (group->limits[index].hold(slots)) return Found(group->plans[index]);
  return {};
}

std::shared_ptr<Plan> take(Group& group, size_t index) {
  std::shared_ptr<Plan> taken = std::move(group.plans[index]);
  group.plans.erase(group.plans.begin() + index);
  group.limits.erase(group.limits.begin() + index);
  --plan_count;
  return taken;
}

// Take plans out of the table, under its lock, into a vector that outlives the lock: what they hold is Python's.
template <typename Condition>
void drop(std::vector<std::shared_ptr<Plan>>& into, Condition condition) {
  for (auto at = groups.begin(); at != groups.end();) {
    Group& group = at->second;
    for (size_t index = group.plans.size(); index-- > 0;)
      if (condition(*group.plans[index])) into.push_back(take(group, index));
    at = group.plans.empty() ? groups.erase(at) : std::next(at);
  }
}

// Drop the quarter that was used least recently.
void drop_oldest(std::vector<std::shared_ptr<Plan>>& into) {
  std::vector<int64_t> ages;
  for (const auto& [hash, group] : groups)
    for (const auto& plan : group.plans) ages.push_back(plan->used);
  const auto limit = ages.begin() + ages.size() / 4;
  std::nth_element(ages.begin(), limit, ages.end());
  const int64_t last = *limit;
  drop(into, [&](const Plan& plan) { return plan.used < last; });
}

// Add a tensor of a call that shares a class; its index among the operator's tensors, before which d_o, o and statistics are.
bool add_of_class(Key& key, Slots& slots, const Tensor& t, int index, bool backward) {
  switch (index) {
    case -3: return add_rows(key, slots, t, kRowsQ, kGapDo, false);
    case -2: return add_rows(key, slots, t, kRowsQ, kGapO, false);
    case -1: return add_statistics(key, slots, t);
    case 0: return add_rows(key, slots, t, kRowsQ, kGapQ, backward);
    case 1: return add_rows(key, slots, t, kRowsKv, kGapK, false);
    case 2: return add_rows(key, slots, t, kRowsKv, kGapV, false);
    case 4:
    case 5: return add_lengths(key, slots, t);
    default: return key.add(t), true;
  }
}

// The current stream of a call; none where it is captured: that is remembered for good, which Python sees to.
std::optional<void*> stream_of(const Tensor* tensors, bool backward) {
  void* stream = nullptr;
  if (current_stream(tensors[backward ? 3 : 0].get_device(), &stream) != 0 || is_capturing(stream)) return std::nullopt;
  return stream;
}

Key key_of(int number, bool backward, uint64_t wanted, void* stream, const Tensor* tensors, int count,
           const Scalar* scalars, int others, Slots& slots) {
  Key key;
  key.add(uint64_t(number) | uint64_t(backward) << 16 | uint64_t(count) << 24 | uint64_t(others) << 32);
  key.add(wanted);
  key.add(uint64_t(*thread));
  key.add(reinterpret_cast<uint64_t>(stream));
  int starts[kTensors + 3 + kScalars + 1];
  const int first = backward ? 3 : 0;
  for (int index = 0; index < count; ++index) {
    starts[index] = key.count + 1;
    if (operators[number].is_class && tensors[index].defined())
      key.whole = add_of_class(key, slots, tensors[index], index - first, backward) && key.whole;
    else
      key.add(tensors[index]);
  }
  if (operators[number].is_class) {
    const int64_t rows[] = {slots.values[kRowsQ], slots.values[kRowsKv]};
    for (int side = 0; side < 2; ++side)  // of what is too large there is no number, and no plan
      if (__builtin_mul_overflow(slots.values[kBatch], rows[side], &slots.values[side == 0 ? kTokensQ : kTokensKv]))
        slots.agree = false;
  }
  for (int index = 0; index < others; ++index) {
    starts[count + index] = key.count + 1;
    key.add(scalars[index]);
  }
  starts[count + others] = key.count + 1;  // of what comes after the last one
  const auto word_of = [&](const Loose& loose) -> uint64_t* {
    if (loose.argument >= count + others) return nullptr;
    if (loose.argument < count && !tensors[loose.argument].defined()) return nullptr;
    const int word = starts[loose.argument] + loose.word;
    return word < starts[loose.argument + 1] - 1 ? &key.words[word] : nullptr;
  };
  for (const Loose& loose : operators[number].loose[backward])
    if (const uint64_t* word = word_of(loose)) slots.put(loose.slot, int64_t(*word + uint64_t(int64_t{loose.shift})));
  for (const Loose& loose : operators[number].loose[backward])
    if (uint64_t* word = word_of(loose)) *word = 0;
  return key;
}

struct Row {  // of words to be written; says whether any changed
  uint64_t* words;
  bool changed = false;

  void put(int at, uint64_t word) {
    if (words[at] == word) return;
    words[at] = word;
    changed = true;
  }
};

// What at::empty_strided does for such a device, past the dispatcher, which nobody listens to.
Tensor empty(c10::IntArrayRef dims, c10::IntArrayRef strides, at::ScalarType type, const Tensor& like) {
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())
    return at::empty_strided(dims, strides, like.options().dtype(type).requires_grad(false));
  c10::Allocator* allocator = c10::GetAllocator(device_type);
  return at::detail::empty_strided_generic(dims, strides, allocator, device_keys, type);
}

// A dense copy.
Tensor copy_of(const Tensor& given, bool tokens_first) {
  const at::AutoDispatchBelowADInplaceOrView below;  // nobody differentiates or watches it
  c10::SmallVector<int64_t, 5> strides(given.dim(), 1);
  for (int64_t axis = given.dim() - 2; axis >= 0; --axis) strides[axis] = strides[axis + 1] * given.size(axis + 1);
  if (tokens_first && given.dim() == 4) {
    strides[1] = given.size(3);
    strides[2] = given.size(1) * given.size(3);
  }
  return empty(given.sizes(), strides, given.scalar_type(), given).copy_(given);
}

// Allocate the outputs. Those of a backward pass lie in one memory: in a thread that waited until now, three allocations take
// as long as all that finds the plan.
void make_outputs(const Plan& plan, const Slots& slots, const Tensor& like, Tensor* outputs) {
  constexpr int64_t kAlignment = 512;  // bytes, as torch's allocator has it
  c10::SmallVector<int64_t, 4> dims[kTensors], strides[kTensors];
  int64_t places[kTensors], size = 0;
  for (size_t index = 0; index < plan.outputs.size(); ++index) {
    const Output& made = plan.outputs[index];
    const auto item = c10::elementSize(made.type);
    for (const Number& number : made.dims) dims[index].push_back(number.of(slots));
    for (const Number& number : made.strides) strides[index].push_back(number.of(slots));
    places[index] = size / int64_t(item);
    for (const int64_t dim : dims[index]) TORCH_CHECK(dim >= 0, "a dim of ", dim);
    for (const int64_t stride : strides[index]) TORCH_CHECK(stride >= 0, "a stride of ", stride);
    const auto bytes = int64_t(at::detail::computeStorageNbytes(dims[index], strides[index], item));
    TORCH_CHECK(bytes >= 0 && bytes <= kMostBytes, "an output of ", bytes, " bytes");
    size += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  Tensor whole;
  if (plan.is_backward) whole = empty({size}, {1}, at::kByte, like);
  for (size_t index = 0; index < plan.outputs.size(); ++index) {
    const Output& made = plan.outputs[index];
    Tensor& output = outputs[index];
    if (whole.defined()) {
      output = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(whole.storage()), device_keys,
                                                        c10::scalarTypeToTypeMeta(made.type));
      output.unsafeGetTensorImpl()->set_sizes_and_strides(dims[index], strides[index], places[index]);
    } else {
      output = empty(dims[index], strides[index], made.type, like);
    }
    if (made.filled) output.fill_(*made.filled);
  }
}

// Allocate the outputs and launch; return 0 or the status that failed.
int launch(Plan& plan, const Slots& slots, const Tensor* inputs, Tensor* outputs) {
  const c10::AutoGradMode without_gradients(false);
  const c10::DeviceGuard guard(inputs[0].device());
  Tensor copies[kTensors + 3];
  call* c = plan.target;
  make_outputs(plan, slots, inputs[0], outputs);
  c10::DataPtr workspace;
  uint64_t addresses[kPieces];
  if (!plan.pieces.empty()) {
    uint64_t size = 0;
    for (size_t index = 0; index < plan.pieces.size(); ++index) {
      addresses[index] = size;
      const int64_t piece = plan.pieces[index].of(slots);
      TORCH_CHECK(piece >= 0 && piece <= kMostBytes, "a piece of ", piece, " bytes");
      size += (uint64_t(piece) + 127) / 128 * 128;
    }
    workspace = c10::GetAllocator(device_type)->allocate(size);
    for (size_t index = 0; index < plan.pieces.size(); ++index)
      addresses[index] += reinterpret_cast<uint64_t>(workspace.get());
  }
  const auto put = [&](Row& row, const Place& place) {
    const auto offset = uint64_t(place.number_or_offset.of(slots));
    if (place.kind == Place::number) return row.put(place.at, offset);
    if (place.kind == Place::piece) return row.put(place.at, addresses[place.index] + offset);
    const Tensor* given = place.kind == Place::output ? &outputs[place.index] : &inputs[place.index];
    if (place.kind == Place::input && plan.copied >> place.index & 1) {
      Tensor& copy = copies[place.index];
      if (!copy.defined()) copy = copy_of(*given, plan.tokens_first);
      given = &copy;
    }
    row.put(place.at, reinterpret_cast<uint64_t>(given->const_data_ptr()) + offset);
  };
  Row row{c->row};
  for (const Place& place : plan.row) put(row, place);
  if (plan.own_piece >= 0 && c->workspace != reinterpret_cast<void*>(addresses[plan.own_piece])) {
    c->workspace = reinterpret_cast<void*>(addresses[plan.own_piece]);
    row.changed = true;
  }
  if (row.changed) c->filled = 0;
  Row parameters{reinterpret_cast<uint64_t*>(plan.prepared)};
  for (const Place& place : plan.parameters) put(parameters, place);
  plan.used = ++calls;
  // One thread launches a plan, on one stream that is not captured: what lies in its own tables is what it wrote last.
  const auto* prepare = c->run.prepare;
  if (plan.keeps_tables && plan.is_prepared && !parameters.changed) c->run.prepare = nullptr;
  const int status = go(c);
  c->run.prepare = prepare;
  plan.is_prepared = status == 0;
  return status;
}

// Set the exception for a status; with Python's lock.
void fail(const Plan& plan, int status) {
  const run& failed = plan.target->run;
  Python answer(PyObject_CallFunction(static_cast<PyObject*>(failed.fail), "ii", int(failed.failed), status));
  if (answer) PyErr_SetString(PyExc_RuntimeError, "cuDNN refused a launch");
}

// Throw Python's exception, taken out of this thread, which may go on without Python's lock.
[[noreturn]] void throw_error() {
  python_error error;
  error.persist();
  throw error;
}

struct Unlocked {  // without Python's lock
  PyThreadState* state = PyEval_SaveThread();
  ~Unlocked() { PyEval_RestoreThread(state); }
};

struct Locked {
  PyGILState_STATE state = PyGILState_Ensure();
  ~Locked() { PyGILState_Release(state); }
};

PyObject* tuple_of(const Tensor* tensors, int count) {
  PyObject* made = PyTuple_New(count);
  for (int index = 0; index < count; ++index) {
    PyObject* item = tensors[index].defined() ? THPVariable_Wrap(tensors[index]) : Py_NewRef(Py_None);
    PyTuple_SET_ITEM(made, index, item);
  }
  return made;
}

PyObject* tuple_of(const Scalar* scalars, int count) {
  PyObject* made = PyTuple_New(count);
  for (int index = 0; index < count; ++index) PyTuple_SET_ITEM(made, index, scalars[index].write());
  return made;
}

// The gradients of the inputs, by Python; tensors are d_o, o, statistics, inputs.
variable_list differentiate_in_python(int number, uint64_t wanted, const Tensor* tensors, int count,
                                      const std::vector<Scalar>& scalars) {
  const Locked locked;
  Python named(tuple_of(tensors, count)), options(tuple_of(scalars.data(), int(scalars.size())));
  Python made(PyObject_CallFunction(backward_in_python, "iOOK", number, named.object, options.object,
                                    static_cast<unsigned long long>(wanted)));
  if (!made) throw_error();
  TORCH_CHECK(PyTuple_Check(made.object) && PyTuple_GET_SIZE(made.object) >= count - 3, "a tuple of all gradients is needed");
  variable_list found(count - 3);
  for (int index = 0; index < count - 3; ++index) {
    PyObject* item = PyTuple_GET_ITEM(made.object, index);
    if (item == Py_None) continue;
    TORCH_CHECK(THPVariable_Check(item), "a gradient is a tensor");
    found[index] = THPVariable_Unpack(item);
  }
  return found;
}

struct Request {  // arguments of call and learn: number of the operator, tensors, numbers
  int number = 0, count = 0, others = 0;
  Tensor tensors[kTensors + 3];
  Scalar scalars[kScalars];

  bool read(PyObject* const* arguments, Py_ssize_t given, int extra) {
    if (given < 1) return false;
    if (!PyLong_CheckExact(arguments[0])) return false;
    int overflows = 0;
    const long asked = PyLong_AsLongAndOverflow(arguments[0], &overflows);
    if (overflows != 0 || asked < 0 || asked >= long(operators.size())) return false;
    number = int(asked);
    count = operators[number].tensors + extra;
    others = int(given) - 1 - count;
    if (others < 0 || others > kScalars) return false;
    for (int index = 0; index < count; ++index) {
      PyObject* object = arguments[1 + index];
      if (object == Py_None) continue;
      if (!THPVariable_CheckExact(object)) return false;
      tensors[index] = THPVariable_Unpack(object);
      if (!is_plain(tensors[index])) return false;
    }
    for (int index = 0; index < others; ++index)
      if (!scalars[index].read(arguments[1 + count + index])) return false;
    return tensors[0].defined() && tensors[extra].defined();
  }
};

// Tell who wants to know of the calls of a plan, once for calls of one shape in a row; whether it is to run.
bool tell(Plan& plan, const Slots& slots) {
  if (plan.notice == nullptr) return true;
  const std::array<int64_t, 3> shape = {slots.values[kBatch], slots.values[kRowsQ], slots.values[kRowsKv]};
  if (plan.shape == shape && plan.silent > 0) return --plan.silent, ++plan.untold, true;
  const Locked locked;
  Python answer(PyObject_CallFunction(plan.notice, "L(LLL)", static_cast<long long>(plan.untold),
                                      static_cast<long long>(shape[0]), static_cast<long long>(shape[1]),
                                      static_cast<long long>(shape[2])));
  if (!answer) throw_error();
  plan.shape = shape;
  plan.untold = 0;
  plan.silent = PyLong_AsLongLong(answer.object);
  if (plan.silent == -1 && PyErr_Occurred()) throw_error();
  return plan.silent >= 0;
}

// The plan of a call: that of its shape, otherwise that of its class.
Found find(int number, bool backward, uint64_t wanted, const Tensor* tensors, int count, const Scalar* scalars, int others,
           Slots& slots) {
  const auto stream = stream_of(tensors, backward);
  for (; stream && number >= 0; number = operators[number].shared) {
    slots = Slots();
    Found found = find(key_of(number, backward, wanted, *stream, tensors, count, scalars, others, slots), slots);
    if (found) return tell(*found, slots) ? std::move(found) : Found();
  }
  return {};
}

struct Attention : public torch::autograd::Function<Attention> {
  using Input = const std::optional<Tensor>&;
  static constexpr int kFirst = 4;  // arguments of forward before those that are differentiable

  static variable_list forward(torch::autograd::AutogradContext* ctx, const Request* request, Plan* plan,
                               const Slots* slots, int* status, Input, Input, Input, Input, Input) {
    Tensor outputs[2];
    *status = launch(*plan, *slots, request->tensors, outputs);
    variable_list saved;
    saved.reserve(request->count + 2);
    saved.assign(request->tensors, request->tensors + request->count);
    saved.insert(saved.end(), outputs, outputs + 2);
    ctx->save_for_backward(std::move(saved));
    std::vector<int64_t> words;
    words.reserve(1 + 2 * request->others);
    words.push_back(request->number);
    for (int index = 0; index < request->others - 1; ++index)  // without wants_stats
      words.insert(words.end(), {request->scalars[index].kind, request->scalars[index].value});
    ctx->saved_data["call"] = std::move(words);
    ctx->mark_non_differentiable({outputs[1]});
    ctx->set_materialize_grads(false);
    return {std::move(outputs[0]), std::move(outputs[1])};
  }

  static variable_list backward(torch::autograd::AutogradContext* ctx, variable_list gradients) {
    variable_list found(kFirst + kDifferentiable);
    if (!gradients[0].defined()) return found;
    const auto words = ctx->saved_data["call"].toIntVector();
    const int number = int(words[0]);
    const Operator& op = operators[number];
    std::vector<Scalar> scalars(words.size() / 2);
    for (size_t index = 0; index < scalars.size(); ++index) {
      scalars[index].kind = words[1 + 2 * index];
      scalars[index].value = words[2 + 2 * index];
    }
    const variable_list saved = ctx->get_saved_variables();
    Tensor tensors[kTensors + 3] = {gradients[0], saved[op.tensors], saved[op.tensors + 1]};
    for (int index = 0; index < op.tensors; ++index) tensors[3 + index] = saved[index];
    uint64_t wanted = 0;
    int edge = 0;
    for (const int index : op.differentiable)
      if (saved[index].defined() && ctx->needs_input_grad(edge++) && op.is_optional(index)) wanted |= uint64_t{1} << index;
    const int count = op.tensors + 3;
    Slots slots;
    const bool quiet = !c10::GradMode::is_enabled() && is_quiet(saved[0].scalar_type()) && is_plain(gradients[0]);
    const Found plan =
        quiet ? find(number, true, wanted, tensors, count, scalars.data(), int(scalars.size()), slots) : Found();
    if (!plan) {
      variable_list made = differentiate_in_python(number, wanted, tensors, count, scalars);
      for (size_t place = 0; place < op.differentiable.size(); ++place)
        found[kFirst + place] = std::move(made[op.differentiable[place]]);
      return found;
    }
    Tensor outputs[kTensors];
    if (const int status = launch(*plan, slots, tensors, outputs)) {
      const Locked locked;
      fail(*plan, status);
      throw_error();
    }
    int output = 0;
    for (size_t place = 0; place < op.differentiable.size(); ++place) {
      const int index = op.differentiable[place];
      if (!op.is_optional(index) || wanted >> index & 1) found[kFirst + place] = std::move(outputs[output++]);
    }
    return found;
  }
};

// call(operator, *tensors, *numbers, wants_stats): (o, stats or None), or None.
PyObject* call_operator(PyObject*, PyObject* const* arguments, Py_ssize_t given) {
  HANDLE_TH_ERRORS
  Request request;
  if (!request.read(arguments, given, 0) || request.others == 0 || !is_quiet(request.tensors[0].scalar_type()))
    Py_RETURN_NONE;
  const Operator& op = operators[request.number];
  bool wants_gradients = false;
  if (c10::GradMode::is_enabled())
    for (const int index : op.differentiable)
      wants_gradients = wants_gradients || (request.tensors[index].defined() && request.tensors[index].requires_grad());
  Scalar& stats = request.scalars[request.others - 1];
  const bool returns_stats = stats.value;
  if (wants_gradients) stats.value = 1;
  Slots slots;
  const Found plan =
      find(request.number, false, 0, request.tensors, request.count, request.scalars, request.others, slots);
  if (!plan) Py_RETURN_NONE;
  Tensor outputs[2];
  int status = 0;
  {
    const Unlocked unlocked;
    if (wants_gradients) {
      const auto given = [&](size_t place) {
        const Tensor* t = place < op.differentiable.size() ? &request.tensors[op.differentiable[place]] : nullptr;
        return t != nullptr && t->defined() ? std::optional<Tensor>(*t) : std::nullopt;
      };
      const variable_list made = Attention::apply(&request, plan.get(), &slots, &status, given(0), given(1), given(2),
                                                  given(3), given(4));
      outputs[0] = made[0];
      outputs[1] = made[1];
    } else {
      status = launch(*plan, slots, request.tensors, outputs);
    }
  }
  if (status) return fail(*plan, status), nullptr;
  return returns_stats ? tuple_of(outputs, 2) : THPVariable_Wrap(outputs[0]);
  END_HANDLE_TH_ERRORS
}

// What PyArg_ParseTuple would call an error of the interpreter's.
PyObject* as_tuple(PyObject* object) {
  TORCH_CHECK(PyTuple_Check(object), "a tuple is needed");
  return object;
}

Number read_number(PyObject* object) {
  if (PyLong_Check(object)) return {PyLong_AsLongLong(object), 0, 0};
  long long base = 0, factor = 0;
  int slot = 0;
  if (!PyArg_ParseTuple(as_tuple(object), "LLi", &base, &factor, &slot)) throw python_error();
  TORCH_CHECK(slot >= 0 && slot < kSlots, "no such slot");
  return {base, factor, slot};
}

// Calls a function with each item of a tuple.
template <typename Function>
void each(PyObject* tuple, Function function) {
  as_tuple(tuple);
  for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(tuple); ++index) {
    function(PyTuple_GET_ITEM(tuple, index));
    if (PyErr_Occurred()) throw python_error();
  }
}

Numbers read_numbers(PyObject* tuple) {
  Numbers found;
  each(tuple, [&](PyObject* item) { found.push_back(read_number(item)); });
  return found;
}

std::vector<Place> read_places(PyObject* tuple) {
  std::vector<Place> found;
  each(tuple, [&](PyObject* item) {
    Place place;
    PyObject* number;
    if (!PyArg_ParseTuple(as_tuple(item), "iiiO", &place.at, &place.kind, &place.index, &number)) throw python_error();
    place.number_or_offset = read_number(number);
    found.push_back(place);
  });
  return found;
}

// The plan that compiled.py describes, see Recipe there.
std::shared_ptr<Plan> read_plan(PyObject* tuple, Limits& ranges) {
  auto plan = std::make_shared<Plan>();
  unsigned long long address, prepared, copied;
  PyObject *limits, *outputs, *row, *parameters, *pieces, *notice, *holds;
  long long token, cost;
  int keeps_tables, tokens_first;
  if (!PyArg_ParseTuple(as_tuple(tuple), "KKOOOOOiKpLLpOO", &address, &prepared, &limits, &outputs, &row, &parameters,
                        &pieces, &plan->own_piece, &copied, &tokens_first, &token, &cost, &keeps_tables, &notice, &holds))
    throw python_error();
  plan->target = reinterpret_cast<call*>(address);
  plan->prepared = reinterpret_cast<int64_t*>(prepared);
  plan->copied = copied;
  plan->tokens_first = tokens_first;
  plan->token = token;
  plan->cost = cost;
  plan->keeps_tables = keeps_tables;
  each(limits, [&](PyObject* item) {
    int slot;
    long long least, most;
    if (!PyArg_ParseTuple(as_tuple(item), "iLL", &slot, &least, &most)) throw python_error();
    TORCH_CHECK(slot >= 0 && slot < kSlots, "no such slot");
    ranges.ranges[slot] = {least, most};
  });
  each(outputs, [&](PyObject* item) {
    PyObject *like, *dims, *strides, *fill;
    if (!PyArg_ParseTuple(as_tuple(item), "OOOO", &like, &dims, &strides, &fill)) throw python_error();
    TORCH_CHECK(THPVariable_Check(like), "a tensor is needed");
    std::optional<double> filled;
    if (fill != Py_None) filled = PyFloat_AsDouble(fill);
    plan->outputs.push_back({THPVariable_Unpack(like).scalar_type(), read_numbers(dims), read_numbers(strides), filled});
  });
  plan->row = read_places(row);
  plan->parameters = read_places(parameters);
  plan->pieces = read_numbers(pieces);
  TORCH_CHECK(plan->pieces.size() <= kPieces, "too many pieces");
  if (notice != Py_None) plan->notice = Py_NewRef(notice);
  plan->holds = Py_NewRef(holds);
  return plan;
}

// Check that what a plan writes is there: places in a call with so many tensors.
void check_places(const Plan& plan, int count, bool backward) {
  TORCH_CHECK(plan.target != nullptr, "no call");
  TORCH_CHECK(plan.outputs.size() <= size_t(backward ? kTensors : 2), "too many outputs");
  TORCH_CHECK(plan.own_piece >= -1 && plan.own_piece < int(plan.pieces.size()), "no such piece");
  TORCH_CHECK(plan.parameters.empty() || plan.prepared != nullptr, "no parameters");
  const int counts[] = {count, int(plan.outputs.size()), int(plan.pieces.size()), std::numeric_limits<int>::max()};
  const auto check = [&](const std::vector<Place>& places, int words) {
    for (const Place& place : places) {
      TORCH_CHECK(place.at >= 0 && place.at < words, "no such word");
      TORCH_CHECK(place.kind >= Place::input && place.kind <= Place::number, "no such kind of place");
      TORCH_CHECK(place.index >= 0 && place.index < counts[place.kind], "no such tensor or piece");
    }
  };
  const struct pack* pack = plan.target->pack;
  check(plan.row, pack == nullptr ? std::numeric_limits<int>::max() : pack->count);
  check(plan.parameters, std::numeric_limits<int>::max());
}

// learn(plan, backward, wanted, arguments of call or of the backward pass): remember a plan for such calls of this thread
// on the current stream; whether it was.
PyObject* learn(PyObject*, PyObject* const* arguments, Py_ssize_t given) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(given > 3, "a plan and the arguments of a call are needed");
  const bool backward = arguments[1] == Py_True;
  const uint64_t wanted = PyLong_AsUnsignedLongLong(arguments[2]);
  if (PyErr_Occurred()) return nullptr;
  Request request;
  if (!request.read(arguments + 3, given - 3, backward ? 3 : 0)) Py_RETURN_FALSE;
  Limits limits;
  std::shared_ptr<Plan> plan = read_plan(arguments[0], limits);
  check_places(*plan, request.count, backward);
  const auto stream = stream_of(request.tensors, backward);
  if (!stream) Py_RETURN_FALSE;
  Slots slots;
  const Key key = key_of(request.number, backward, wanted, *stream, request.tensors, request.count, request.scalars,
                         request.others, slots);
  if (!key.whole || !slots.agree || !limits.hold(slots)) Py_RETURN_FALSE;
  for (int index = 0; index < request.others; ++index)
    if (request.scalars[index].kind == Scalar::text) Py_INCREF(reinterpret_cast<PyObject*>(request.scalars[index].value));
  plan->owner = thread;
  plan->is_backward = backward;
  plan->used = ++calls;
  std::vector<std::shared_ptr<Plan>> dropped;  // outlives the lock
  const std::lock_guard<std::mutex> locked(mutex);
  thread_local bool is_new = true;
  if (is_new) drop(dropped, [](const Plan& other) { return other.owner.expired(); });  // of threads that ended
  is_new = false;
  if (plan_count >= kPlans) drop_oldest(dropped);
  const uint64_t hash = key.hash();
  Group* group = group_of(key, hash);
  if (group == nullptr) {
    group = &groups.emplace(hash, Group())->second;
    group->key.assign(key.words.begin(), key.words.begin() + key.count);
  }
  for (size_t index = group->plans.size(); index-- > 0;)
    if (group->limits[index].ranges == limits.ranges) dropped.push_back(take(*group, index));
  auto& same = group->plans;
  const auto behind = std::find_if(same.begin(), same.end(), [&](const auto& other) { return other->cost > plan->cost; });
  group->limits.insert(group->limits.begin() + (behind - same.begin()), limits);
  same.insert(behind, std::move(plan));
  ++plan_count;
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

// forget(token): drop the plans with this token, all with None, once none of them is being launched; how many.
PyObject* forget(PyObject*, PyObject* token) {
  HANDLE_TH_ERRORS
  const bool all = token == Py_None;
  const long long wanted = all ? 0 : PyLong_AsLongLong(token);
  if (PyErr_Occurred()) return nullptr;
  std::vector<std::shared_ptr<Plan>> dropped;
  {
    const std::lock_guard<std::mutex> locked(mutex);
    drop(dropped, [&](const Plan& plan) { return all || plan.token == wanted; });
  }
  {
    const Unlocked unlocked;
    for (const auto& plan : dropped)
      while (plan->running != 0) std::this_thread::yield();
  }
  return PyLong_FromSize_t(dropped.size());
  END_HANDLE_TH_ERRORS
}

// used(token): the number of the last call with such a plan, of all calls so far; 0 if there was none.
PyObject* used(PyObject*, PyObject* token) {
  const long long wanted = PyLong_AsLongLong(token);
  if (PyErr_Occurred()) return nullptr;
  int64_t last = 0;
  const std::lock_guard<std::mutex> locked(mutex);
  for (const auto& [hash, group] : groups)
    for (const auto& plan : group.plans)
      if (plan->token == wanted) last = std::max<int64_t>(last, plan->used);
  return PyLong_FromLongLong(last);
}

// define(tensors, differentiable, optional, loose forward, loose backward, of = -1): a new operator's number. With another
// operator's number it is the class of that one's calls, whose tensors are dense; the loose numbers of both are none.
PyObject* define(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  Operator made;
  unsigned long long differentiable, optional;
  PyObject* loose[2];
  int of = -1;
  if (!PyArg_ParseTuple(arguments, "iKKOO|i", &made.tensors, &differentiable, &optional, &loose[0], &loose[1], &of))
    return nullptr;
  TORCH_CHECK(made.tensors > 0 && made.tensors <= kTensors, "no such number of tensors");
  TORCH_CHECK(of >= -1 && of < int(operators.size()), "no such operator");
  TORCH_CHECK((differentiable | optional) >> made.tensors == 0, "no such tensor");
  made.is_class = of >= 0;
  for (int index = 0; index < made.tensors; ++index)
    if (differentiable >> index & 1) made.differentiable.push_back(index);
  TORCH_CHECK(made.differentiable.size() <= kDifferentiable, "too many tensors with gradients");
  made.optional = optional;
  for (int index = 0; index < 2; ++index)
    each(loose[index], [&](PyObject* item) {
      Loose found;
      if (!PyArg_ParseTuple(as_tuple(item), "iiii", &found.argument, &found.word, &found.slot, &found.shift))
        throw python_error();
      TORCH_CHECK(found.slot >= 0 && found.slot < kSlots, "no such slot");
      TORCH_CHECK(found.argument >= 0 && found.argument < kTensors + 3 + kScalars, "no such argument");
      TORCH_CHECK(found.word >= 0 && found.word < kWords, "no such word");
      made.loose[index].push_back(found);
    });
  operators.push_back(made);
  if (of >= 0) operators[of].shared = int(operators.size()) - 1;
  return PyLong_FromLong(long(operators.size()) - 1);
  END_HANDLE_TH_ERRORS
}

// connect(go, current_stream, stream_is_capturing or 0, backward_in_python, device type): the functions it calls, and whose tensors it takes.
PyObject* connect(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  unsigned long long launch_address, stream_address, capture_address;
  const char* device;
  if (!PyArg_ParseTuple(arguments, "KKKOs", &launch_address, &stream_address, &capture_address, &backward_in_python,
                        &device))
    return nullptr;
  Py_INCREF(backward_in_python);
  go = reinterpret_cast<int (*)(call*)>(launch_address);
  current_stream = reinterpret_cast<int32_t (*)(int32_t, void**)>(stream_address);
  stream_is_capturing = reinterpret_cast<int (*)(void*, int*)>(capture_address);
  device_type = c10::Device(device).type();
  const auto key = c10::computeDispatchKey(std::nullopt, std::nullopt, c10::Device(device_type));
  const auto backend = c10::toBackendComponent(key);
  device_keys = c10::DispatchKeySet(key);
  plain_keys = device_keys | c10::getAutogradRelatedKeySetFromBackend(backend) |
               c10::getAutocastRelatedKeySetFromBackend(backend);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// What DLPack's C exchange function of torch answers, without its locks and references; -1 for what is not plain.
int read_tensor(void* object, dl_tensor* out) noexcept {
  try {
    const Tensor& t = THPVariable_Unpack(static_cast<PyObject*>(object));
    if (!t.defined() || (t.key_set() | plain_keys) != plain_keys) return -1;
    const DLDataType type = at::getDLDataType(t);
    *out = {t.data_ptr(), t.is_cuda() ? int32_t(kDLCUDA) : int32_t(kDLCPU), t.get_device(), int32_t(t.dim()), type.code,
            type.bits, type.lanes, const_cast<int64_t*>(t.sizes().data()), const_cast<int64_t*>(t.strides().data()), 0};
    return 0;
  } catch (...) {
    return -1;
  }
}

// Have on its way from memory what read_tensor reads: the objects, then the tensors, then the storages. Tensors that are
// new to a call lie far apart, and their misses would follow one after the other.
void fetch_tensors(void* const* objects, int count) noexcept {
  constexpr size_t kLine = 64;
  const auto impl = [&](int index) {
    return THPVariable_Unpack(static_cast<PyObject*>(objects[index])).unsafeGetTensorImpl();
  };
  for (int index = 0; index < count; ++index)
    for (size_t at = 0; at < sizeof(at::TensorImpl); at += kLine)
      __builtin_prefetch(reinterpret_cast<const char*>(impl(index)) + at);
  for (int index = 0; index < count; ++index)
    if (impl(index)->has_storage()) __builtin_prefetch(impl(index)->unsafe_storage().unsafeGetStorageImpl());
}

// reader(): the addresses of both, for fast_call.c.
PyObject* reader(PyObject*, PyObject*) {
  return Py_BuildValue("KK", reinterpret_cast<unsigned long long>(read_tensor),
                       reinterpret_cast<unsigned long long>(fetch_tensors));
}

PyMethodDef methods[] = {
    {"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_operator)), METH_FASTCALL, nullptr},
    {"learn", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(learn)), METH_FASTCALL, nullptr},
    {"forget", forget, METH_O, nullptr},
    {"used", used, METH_O, nullptr},
    {"define", define, METH_VARARGS, nullptr},
    {"connect", connect, METH_VARARGS, nullptr},
    {"reader", reader, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "cudnn_backend_py_torch", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_cudnn_backend_py_torch() {
  PyObject* made = PyModule_Create(&module);
  if (made != nullptr) PyModule_AddIntConstant(made, "version", CUDNN_BACKEND_PY_FAST_CALL_VERSION);
  return made;
}
