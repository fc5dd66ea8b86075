#include <atomic>
#include <cstring>

#include "isa.h"
#include "pool.h"

namespace gk {
namespace {

struct Choice {
    const char* name;
    Isa isa;
    bool (*runs)();
};

const Choice choices[] = {
#if defined(__x86_64__)
    {"avx512", Isa::avx512,
     [] {
         return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
     }},
    {"avx2", Isa::avx2,
     [] {
         return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
     }},
#elif defined(__aarch64__)
    {"neon", Isa::neon, [] { return true; }},
#endif
    {"portable", Isa::portable, [] { return true; }},
};

std::atomic<const Choice*>& current() {
    static std::atomic<const Choice*> choice = [] {
        for (const Choice& choice : choices)
            if (choice.runs()) return &choice;
        return static_cast<const Choice*>(nullptr);
    }();
    return choice;
}

}  // namespace

Isa isa() { return current().load(std::memory_order_relaxed)->isa; }

}  // namespace gk

int32_t gk_abi_version(void) { return GK_ABI_VERSION; }

const char* gk_isa(void) { return gk::current().load()->name; }

int32_t gk_select_isa(const char* name) {
    for (const gk::Choice& choice : gk::choices)
        if (!std::strcmp(choice.name, name) && choice.runs()) {
            gk::current() = &choice;
            return 0;
        }
    return -1;
}

void gk_set_threads(int32_t threads) { gk::set_threads(threads); }
int32_t gk_threads(void) { return gk::threads(); }
