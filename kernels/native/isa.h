// Which instruction set the calls run on. Each area has one table of functions per set, and asks for the chosen one.
#pragma once
#include "gk.h"

namespace gk {

enum class Isa { portable, avx2, avx512, neon };
constexpr int ISAS = 4;

Isa isa();

// A table that this build does not have is null, and never chosen.
template <class Table>
const Table& chosen(const Table* const (&tables)[ISAS]) {
    return *tables[static_cast<int>(isa())];
}

}  // namespace gk

// The tables of an area, in the order of Isa: GK_TABLES(LinearTable, linear_table) declares gk::<isa>::linear_table.
#define GK_DECLARE(isa, Type, name) \
    namespace isa {                 \
    extern const Type name;         \
    }
#if defined(__x86_64__)
#define GK_TABLES(Type, name)         \
    GK_DECLARE(portable, Type, name)  \
    GK_DECLARE(avx2, Type, name)      \
    GK_DECLARE(avx512, Type, name)    \
    static const Type* const name##s[ISAS] = {&portable::name, &avx2::name, &avx512::name, nullptr};
#elif defined(__aarch64__)
#define GK_TABLES(Type, name)        \
    GK_DECLARE(portable, Type, name) \
    GK_DECLARE(neon, Type, name)     \
    static const Type* const name##s[ISAS] = {&portable::name, nullptr, nullptr, &neon::name};
#else
#define GK_TABLES(Type, name)        \
    GK_DECLARE(portable, Type, name) \
    static const Type* const name##s[ISAS] = {&portable::name, nullptr, nullptr, nullptr};
#endif
