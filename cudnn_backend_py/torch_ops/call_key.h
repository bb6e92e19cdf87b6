// By what a call of an operator is found: what its tensors look like and its numbers are, without what calls of one plan may
// differ in. For compiled.cpp.
#pragma once
#include <Python.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <cstring>

namespace {

using at::Tensor;

constexpr int kWords = 256;
constexpr int kSlots = 12;

// None, a truth, a number or an interned text of Python: kind and value.
struct Scalar {
  enum Kind : int64_t { none, truth, integer, real, text };
  int64_t kind = none, value = 0;

  bool read(PyObject* object) {
    if (object == Py_None) return kind = none, value = 0, true;
    if (PyBool_Check(object)) return kind = truth, value = object == Py_True, true;
    if (PyLong_CheckExact(object)) {
      kind = integer, value = PyLong_AsLongLong(object);
      if (value != -1 || !PyErr_Occurred()) return true;
      return PyErr_Clear(), false;
    }
    if (PyUnicode_CheckExact(object) && PyUnicode_CHECK_INTERNED(object))
      return kind = text, value = reinterpret_cast<int64_t>(object), true;
    if (!PyFloat_CheckExact(object)) return false;
    const double number = PyFloat_AS_DOUBLE(object);
    kind = real;
    std::memcpy(&value, &number, sizeof value);
    return true;
  }

  PyObject* write() const {
    if (kind == none) Py_RETURN_NONE;
    if (kind == truth) return PyBool_FromLong(value);
    if (kind == integer) return PyLong_FromLongLong(value);
    if (kind == text) return Py_NewRef(reinterpret_cast<PyObject*>(value));
    double number;
    std::memcpy(&number, &value, sizeof number);
    return PyFloat_FromDouble(number);
  }
};

// A number of an argument that is no part of the key, so that calls which differ in it only share plans.
struct Loose {
  int argument;  // tensors first, then numbers
  int word;      // of a tensor: its dims, then its strides
  int slot;      // where it is kept, with the shift added; the loose numbers of one slot must be equal
  int shift;
};

struct Slots {
  std::array<int64_t, kSlots> values;
  bool agree = true;

  Slots() { values.fill(-1); }
  void put(int slot, int64_t value) {
    if (values[slot] != -1 && values[slot] != value) agree = false;
    values[slot] = value;
  }
};

// base + factor * slot
struct Number {
  int64_t base = 0, factor = 0;
  int slot = 0;

  int64_t of(const Slots& slots) const {
    if (factor == 0) return base;
    int64_t found = 0;
    TORCH_CHECK(!__builtin_mul_overflow(factor, slots.values[slot], &found) && !__builtin_add_overflow(base, found, &found),
                "a size that is no number");
    return found;
  }
};

struct Key {
  std::array<uint64_t, kWords> words;
  int count = 0;
  bool whole = true;  // whether all found room

  void add(uint64_t word) {
    if (count == kWords)
      whole = false;
    else
      words[count++] = word;
  }
  void add_kind(const Tensor& t, uint64_t more = 0) {
    const auto address = reinterpret_cast<uint64_t>(t.const_data_ptr());
    add(uint64_t(t.dim()) | uint64_t(t.scalar_type()) << 8 | uint64_t(uint8_t(t.get_device())) << 16 | (address & 15) << 24 |
        more << 32);
  }
  void add(const Tensor& t) {
    if (!t.defined()) return add(~uint64_t{0});
    add_kind(t);
    for (int64_t dim : t.sizes()) add(uint64_t(dim));
    for (int64_t stride : t.strides()) add(uint64_t(stride));
  }
  void add(const Scalar& s) {
    add(uint64_t(s.kind));
    add(uint64_t(s.value));
  }
  uint64_t hash() const {
    uint64_t found = 0;
    for (int index = 0; index < count; ++index) {
      found = (found ^ words[index]) * 0x9E3779B97F4A7C15ull;
      found ^= found >> 32;
    }
    return found;
  }
};

// Slots of calls that share the class of dense tensors; compiled.py has the same.
enum ClassSlot { kTokensQ, kTokensKv, kBatch, kRowsQ, kRowsKv, kGapQ = 7, kGapK, kGapV, kGapDo, kGapO };

// A dense tensor [b, h, s, d] without batch, length, and those strides that follow from them or are numbers of the kernel
// that prepares a class. What is left decides how reading.py reads it. False where it cannot be shared.
bool add_rows(Key& key, Slots& slots, const Tensor& t, ClassSlot rows, ClassSlot gap, bool may_be_tight) {
  if (t.dim() != 4) return false;
  const int64_t b = t.size(0), h = t.size(1), s = t.size(2), d = t.size(3);
  const int64_t head = h == 1 ? d : t.stride(1), token = s == 1 ? h * head : t.stride(2);
  const int64_t sequence = b == 1 ? s * token : t.stride(0);
  const bool folds = s > 1 && head > token;  // heads before rows
  const bool in_line = b == 1 || t.stride(0) == h * t.stride(1);
  const int64_t between = (folds ? head : sequence) * int64_t(t.element_size());
  if ((folds && !in_line) || between <= 0 || between % 16) return false;
  slots.put(kBatch, b);
  slots.put(rows, s);
  slots.put(gap, between / 16);
  const bool flags[] = {s == 1,
                        folds,
                        in_line && s == 1,
                        t.stride(1) >= t.stride(2),
                        may_be_tight && token == h * d && sequence == s * token,
                        may_be_tight && t.stride(1) == s * d};
  uint64_t word = 1;
  for (const bool flag : flags) word = word << 1 | flag;
  key.add_kind(t, word);
  key.add(uint64_t(h));
  key.add(uint64_t(d));
  key.add(folds ? 0 : uint64_t(head));
  key.add(s == 1 ? 0 : uint64_t(token));
  key.add(d == 1 ? 1 : uint64_t(t.stride(3)));
  return true;
}

// Statistics [b, h, s, 1], so.
bool add_statistics(Key& key, Slots& slots, const Tensor& t) {
  if (t.dim() != 4 || t.size(3) != 1) return false;
  const bool heads_first = t.is_contiguous(), rows_first = t.transpose(1, 2).is_contiguous();
  slots.put(kBatch, t.size(0));
  slots.put(kRowsQ, t.size(2));
  key.add_kind(t, 4 | heads_first << 1 | rows_first);
  key.add(uint64_t(t.size(1)));
  return heads_first || rows_first;
}

// Lengths [b], so.
bool add_lengths(Key& key, Slots& slots, const Tensor& t) {
  if (t.dim() != 1) return false;
  slots.put(kBatch, t.size(0));
  key.add_kind(t, 1);
  key.add(uint64_t(t.stride(0)));
  return true;
}

}  // namespace
