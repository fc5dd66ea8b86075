// Threads that share the parts of a call. They wait on a flag for some microseconds after a call, as the next one of
// the same token follows at once, then sleep: an idle process uses no processor time.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gk {

using Part = void (*)(void* context, int64_t part);

// Calls part(context, i) once for every i in [0, parts), in any order and on any thread, and returns when all are done.
// A call from inside a part, or while another thread's call runs, computes its parts by itself.
void run_parts(int64_t parts, Part part, void* context);

// At least 1, the calling thread included. Takes effect with the next call.
void set_threads(int threads);
int threads();

template <class Function>
void parallel(int64_t parts, Function function) {
    run_parts(parts, [](void* context, int64_t part) { (*static_cast<Function*>(context))(part); }, &function);
}

// What a thread's memory is for: functions that call each other use different slots.
enum Slot {
    LAYER_INPUT,
    LAYER_WIDE,
    LAYER_NARROW,
    SLOTS,
};

// Memory of the calling thread that lasts until its next request of the same slot; aligned to a cache line.
void* scratch_bytes(Slot slot, size_t bytes);

template <class T>
T* scratch(Slot slot, size_t count) {
    return static_cast<T*>(scratch_bytes(slot, count * sizeof(T)));
}

}  // namespace gk
