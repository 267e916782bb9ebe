// SPDX-License-Identifier: Apache-2.0
#pragma once

// Marks functions that CPU and CUDA code share; to a plain C++ compiler they are ordinary inline functions.
#if defined(__CUDACC__)
#define SPARSECAST_HD __host__ __device__ __forceinline__
#else
#define SPARSECAST_HD inline
#endif
