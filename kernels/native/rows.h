// The functions on rows and over pages, one table per instruction set.
#pragma once
