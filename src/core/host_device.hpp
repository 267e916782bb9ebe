#pragma once

// Arithmetic that CPU and CUDA share is written once, in functions marked so; plain g++ sees ordinary inline functions.
#if defined(__CUDACC__)
#define SPARSECAST_HD __host__ __device__ __forceinline__
#else
#define SPARSECAST_HD inline
#endif
