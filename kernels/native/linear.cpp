#include "linear.h"

#include "simd.h"
