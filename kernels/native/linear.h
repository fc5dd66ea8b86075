// The linear layers' functions, one table per instruction set.
#pragma once
