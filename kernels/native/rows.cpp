#include "rows.h"

#include "simd.h"
